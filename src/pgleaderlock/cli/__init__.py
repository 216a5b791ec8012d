"""The command line: it turns arguments into calls of the library, and adds no decisions of its own.

:func:`main` is the only part that may be imported without the ``cli`` extra; it prints what to install when click or
loguru is missing. It is also the only part that replaces the process, to take a password out of the process list.
"""

import sys

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.argv_secrets import move_secrets_to_environment


def main() -> None:
    """Run the command line of this process, and exit with one of :mod:`~pgleaderlock.cli.exit_codes`."""
    try:
        code = _run()
    except KeyboardInterrupt:  # before a command handles signals, for example while the embedded server starts
        code = exit_codes.INTERRUPTED
    sys.exit(code)


def _run() -> int:
    move_secrets_to_environment()
    try:
        import click  # noqa: F401, PLC0415 - only to see whether it is there
        import loguru  # noqa: F401, PLC0415
        import rich  # noqa: F401, PLC0415
    except ImportError as error:
        sys.stderr.write(
            f"pgleaderlock: the command line is not installed ({error}): pip install 'pgleaderlock[cli]'\n"
        )
        return exit_codes.USAGE
    from pgleaderlock.cli.commands import invoke  # noqa: PLC0415 - it needs what was just looked for

    return invoke(sys.argv[1:])
