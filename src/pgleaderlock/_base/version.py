"""Which version this is. A module of its own, so that whoever writes it down need not import everything."""

__version__ = "0.2.0.dev0"
