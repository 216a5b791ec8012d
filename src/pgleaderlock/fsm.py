"""The state machine, under the name that the specification has for it: :mod:`pgleaderlock.engine.fsm`."""

from pgleaderlock.engine.fsm import *  # noqa: F403 - it says itself what it offers
from pgleaderlock.engine.fsm import __all__ as __all__  # noqa: PLC0414 - offered, not used
