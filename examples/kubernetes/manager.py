"""Jobs that one pod processes and the others wait for: a Manager, a Config, and a Lease that answers.

    pip install 'pgleaderlock[kubernetes]'
    POD_NAME=here python manager.py

$POD_NAME and $POD_NAMESPACE come from the Deployment (see deployment.yaml beside it). Outside a cluster, the kubeconfig
is used.
"""

import os
import signal
import threading

from pgleaderlock.compat.consensus import Config
from pgleaderlock.stores.kubernetes import new_from_env
from pgleaderlock.sync import Lease, Manager

PAUSE_S = float(os.environ.get("PAUSE_S", "2"))


def process_jobs(lease: Lease) -> None:
    """Do what must be done by one pod at a time."""
    print(f"{os.environ['POD_NAME']} processes jobs in term {lease.token}", flush=True)


def main() -> None:
    """Take part until the pod is asked to end, and then hand over at once."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    config = Config(identity=os.environ["POD_NAME"], lease_duration_s=float(os.environ.get("LEASE_S", "15")))
    with Manager(new_from_env("my-app-leader"), config) as lease:  # start() and stop()
        while not stopped.is_set():
            if lease.is_leader():
                process_jobs(lease)
            stopped.wait(PAUSE_S)


if __name__ == "__main__":
    main()
