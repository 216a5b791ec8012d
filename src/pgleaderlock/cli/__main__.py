"""``python -m pgleaderlock.cli``: the same as the ``pgleaderlock`` script."""

from pgleaderlock.cli import main

main()
