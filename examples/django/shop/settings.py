"""Settings, as few as Django needs."""

import os

SECRET_KEY = "only an example"  # noqa: S105 - it protects nothing
USE_TZ = True
INSTALLED_APPS = ["pgleaderlock.integrations.django", "shop"]
DATABASES: dict[str, dict[str, object]] = {}
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
PGLEADERLOCK = {
    "role": "examples/django",
    "dsn": os.environ.get("PG_DSN", ""),
    "while_leader": ["shop.jobs.consume"],
    "options": {"health_interval_s": 1.0},
}
