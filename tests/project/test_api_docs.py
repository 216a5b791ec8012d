"""The documented signatures are those of the code; and the check that says so is able to fail."""

import importlib
import re
import shutil
from pathlib import Path

import pytest

from tests.support.fsm_docs import ROOT, load_tool

api_docs = load_tool("api_docs")
PAGE = ROOT / "docs" / "reference" / "signatures.md"


@pytest.mark.slow
def test_the_documented_signatures_are_those_of_the_code():
    assert api_docs.main(["--check"]) == 0, "docs/reference/signatures.md is out of date: run `make docs`"


@pytest.mark.slow
def test_the_check_fails_on_a_page_that_says_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    copy = Path(shutil.copy(PAGE, tmp_path / "page.md"))
    right = copy.read_text(encoding="utf-8")
    assert "hard_fence: bool = False" in right
    copy.write_text(right.replace("hard_fence: bool = False", "hard_fence: bool = True"), encoding="utf-8")
    assert api_docs.main(["--check", "--page", str(copy)]) == 1
    assert "make docs" in capsys.readouterr().err
    assert api_docs.main(["--page", str(copy)]) == 0
    assert copy.read_text(encoding="utf-8") == right


@pytest.mark.parametrize("name", api_docs.MODULES)
def test_every_public_name_is_there(name: str):
    part = PAGE.read_text(encoding="utf-8").split(f"## `{name}`\n")[1].split("\n## ")[0]
    for public in importlib.import_module(name).__all__:
        assert re.search(rf"^(class|def|async def)? ?{public}\b", part, re.MULTILINE), public


def test_what_the_api_page_says_of_modules_can_be_imported():
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    for module in set(re.findall(r"`(pgleaderlock(?:\.[a-z_]+)+)`", text)):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:  # a name in a module, then
            parent, _, name = module.rpartition(".")
            assert hasattr(importlib.import_module(parent), name), module
