"""The README's first program does what the README says, and ends as people end programs."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Postgres
from tests.support.fsm_docs import ROOT

PRELUDE = """\
async def enqueue_due_invoices(fence: int) -> None:
    print("leads", fence, flush=True)


"""


def first_program(dsn: str) -> str:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    shown = '"postgresql://app@db/app"'
    assert shown in found[1]
    no_past = f"{dsn!r}, settle_s=0.0"  # the tests' server has just started, and no candidate has led on it
    return PRELUDE + found[1].replace(shown, no_past)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_first_program_leads_and_ends_without_a_traceback(
    postgres: Postgres, tmp_path: Path, ending: signal.Signals
):
    program = tmp_path / "program.py"
    program.write_text(first_program(postgres.dsn), encoding="utf-8")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, str(program)], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("leads ")
        process.send_signal(ending)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "")
