"""A Django project of which one process runs the scheduler.

PG_DSN=postgresql://... python examples/django/manage.py leader_exec -- run_scheduler
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
