"""What tests of cli share with others."""

import sys

CLI = (sys.executable, "-m", "pgleaderlock.cli")
