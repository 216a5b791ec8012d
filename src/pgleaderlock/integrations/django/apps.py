"""The Django application. It has no models: what it brings is the command ``leader_exec``."""

from django.apps import AppConfig

__all__ = ["LeaderLockConfig"]


class LeaderLockConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """Found by Django through ``INSTALLED_APPS``."""

    name = "pgleaderlock.integrations.django"
    label = "pgleaderlock"
    verbose_name = "Leader election"
