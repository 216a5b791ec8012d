"""``python -m pgleaderlock.testing.simulation``: many seeds; :mod:`.many` says how."""

import sys

from pgleaderlock.testing.simulation.many import main

sys.exit(main())
