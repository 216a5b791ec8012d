"""Django: a management command that runs another only while leading, and what settings say of the lock.

    INSTALLED_APPS = [..., "pgleaderlock.integrations.django"]

    PGLEADERLOCK = {"role": "shop/scheduler"}

    manage.py leader_exec -- run_scheduler --every 5m

Needs ``pgleaderlock[django,cli]``. The lock is kept in ``DATABASES["default"]``, another of ``DATABASES``, or wherever
``PGLEADERLOCK["dsn"]`` says; a pooler in transaction mode will not do.
"""
