"""Frameworks that people run, one module each: ``starlette``, ``celery``, ``django``, ``pytest_plugin`` and others.

Each imports its framework, and nothing else of this library imports it. Each is thin: what it does can be done by hand
with ``while_leader`` and :class:`~pgleaderlock.work.services.LeaderServices`.
"""
