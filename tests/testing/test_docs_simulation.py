"""The how-to about simulating one's own code: its examples are found, and pass, as it says."""

import re
from pathlib import Path

import pytest

from pgleaderlock.testing import SimulationFailed

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "simulate-your-code.md"


@pytest.mark.slow
def test_the_bugs_of_the_examples_are_found_and_the_mended_one_passes():
    careless, told, careful = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    for wrong in (careless, told):
        with pytest.raises(SimulationFailed, match="bills a customer") as raised:
            exec(wrong, names)
        assert raised.value.kind == "acted"
    exec(careful.replace("range(10)", "range(2)"), names)
