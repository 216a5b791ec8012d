"""What tests of fsm docs share with others."""

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def load_tool(name: str) -> Any:
    """Import it from its file: tools are no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
