"""Frameworks that people run, one module each: ``starlette``, ``apscheduler``, ``celery``, ``django``, ``systemd``.

Each imports its framework, and nothing else of this library imports it. Each is thin: what it does can be done by hand
with ``while_leader`` and :class:`~pgleaderlock.work.services.LeaderServices`.
"""
