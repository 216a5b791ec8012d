"""What the exit status of ``pgleaderlock`` means. Scripts depend on these numbers: they do not change."""

__all__ = [
    "CLEAN",
    "EXIT_CODES_HELP",
    "INTERRUPTED",
    "LEADERSHIP_ENDED",
    "NOT_ACQUIRED",
    "NOT_HANDED_OVER",
    "OVERLAP",
    "TERMINATED",
    "UNFIT",
    "UNREACHABLE",
    "USAGE",
]

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

EXIT_CODES_HELP = f"""\b
Exit codes:
  {CLEAN}    clean: stopped on request, acquired, status shown, or no problem found
  {NOT_ACQUIRED}    not acquired: another process holds the lock
       (also: nobody took over from whoever was asked to step down, audit
       found an overlap, the answer could not be written to stdout)
  {USAGE}    wrong usage: nothing was started
  {UNREACHABLE}    the database cannot be reached, or the embedded one failed
  {LEADERSHIP_ENDED}    leadership was lost, the election gave up, or the release
       was not confirmed (the session is closed then)
  {UNFIT}    doctor found a problem: do not elect leaders on this database yet
  {INTERRUPTED}  interrupted before there was anything to hand over ({TERMINATED}: SIGTERM)
"""
