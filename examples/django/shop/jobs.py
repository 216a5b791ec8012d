"""Functions for the leader: for ``leader_exec --call shop.jobs.nightly``, and for the server that leads."""

import os

from pgleaderlock import Term


def nightly() -> None:
    """Stand for a job that must run once."""
    print(f"nightly job in process {os.getpid()}", flush=True)


def consume(term: Term) -> None:
    """Runs in a thread of the server process that leads, until it is told to stop."""
    print(f"consumes in process {os.getpid()}, term {term.token}", flush=True)
    while not term.wait(1.0):
        print("consumed something", flush=True)
    print("stopped consuming", flush=True)
