"""The exit codes of ``pgleaderlock``. Scripts depend on these numbers: they do not change."""

CLEAN = 0
NOT_ACQUIRED = 1
NOT_HANDED_OVER = 1
OVERLAP = 1
USAGE = 2
UNREACHABLE = 3
LEADERSHIP_ENDED = 4
UNFIT = 5
INTERRUPTED = 130  # as shells have it: 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM


def of_signal(number: int) -> int:
    """Return the exit code that shells show for a process that this signal ended."""
    return 128 + number


# exec also passes on the exit code of its command, so its own codes are numbers that commands seldom use: those of
# sysexits.h (EX_UNAVAILABLE, EX_TEMPFAIL), timeout(1) and the shell.
EXEC_UNREACHABLE = 69
EXEC_LOST = 75
EXEC_NOT_ACQUIRED = 124
EXEC_FAILED = 125
CANNOT_EXECUTE = 126
NOT_FOUND = 127

EXIT_CODES_HELP = f"""\b
Exit codes, of which COMMAND --help shows those of one command:
  {CLEAN}    clean: stopped on request, acquired, status shown, or no problem found
  {NOT_ACQUIRED}    not acquired: another process holds the lock
       (also: no other node took over after a step-down, audit or torture
       found an overlap, the answer could not be written to stdout)
  {USAGE}    wrong usage: nothing was started
  {UNREACHABLE}    the database cannot be reached, or the embedded one failed
  {LEADERSHIP_ENDED}    leadership was lost, the election gave up, or the release
       was not confirmed (the session is closed then)
  {UNFIT}    doctor, or torture before it began, found a problem: do not elect
       leaders on this database yet
  {INTERRUPTED}  interrupted before there was anything to hand over ({TERMINATED}: SIGTERM)
"""
