"""``python -m pgleaderlock.testing.simulation``: many seeds; :mod:`.many` says how."""

import sys

from pgleaderlock.testing.simulation.many import main

if __name__ == "__main__":
    sys.exit(main())
