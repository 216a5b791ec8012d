"""``python -m pgleaderlock``: the same as the ``pgleaderlock`` script."""

from pgleaderlock.cli import main

main()
