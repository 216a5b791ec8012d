"""Descriptors and change notifications for locks in files. Nothing here knows of locks."""
