"""A node's configuration: one TOML file, overridden by environment variables, overridden by flags.

Needs ``pip install "pgleaderlock[config]"``. :func:`load_config` returns a frozen :class:`Config`, or raises an error
with all problems at once, each with file and key. No secret is ever shown, neither by an error nor by ``repr``.

::

    defaults  <  pgleaderlock.toml  <  $PGLEADERLOCK_…  <  --set key=value
"""

from pgleaderlock.errors import MissingExtra

try:
    from pgleaderlock.ops.config.model import Config
    from pgleaderlock.ops.config.problems import ConfigError, Problem
    from pgleaderlock.ops.config.shown import InForce, in_force
    from pgleaderlock.ops.config.sources import Loaded, load, load_config
except ModuleNotFoundError as error:
    raise MissingExtra(f'a configuration needs the package {error.name}: pip install "pgleaderlock[config]"') from error

__all__ = ["Config", "ConfigError", "InForce", "Loaded", "Problem", "in_force", "load", "load_config"]
