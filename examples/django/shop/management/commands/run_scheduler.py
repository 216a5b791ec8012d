"""A command as people have it: it knows nothing of leadership."""

import os
import time
from typing import Any

from django.core.management import BaseCommand


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """Does something every now and then, for ever."""

    def handle(self, **_: Any) -> None:
        """Stand for a scheduler."""
        while True:
            self.stdout.write(f"scheduled in process {os.getpid()}, term {os.environ.get('PGLEADERLOCK_TOKEN')}")
            self.stdout.flush()
            time.sleep(0.2)
