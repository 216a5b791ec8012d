"""A function for ``leader_exec --call shop.jobs.nightly``."""

import os


def nightly() -> None:
    """Stand for a job that must run once."""
    print(f"nightly job in process {os.getpid()}", flush=True)
