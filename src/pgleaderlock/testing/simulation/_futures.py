"""Answers that may come after nobody waits for them any more."""

import asyncio
from typing import TypeVar

__all__ = ["reject", "resolve"]

T = TypeVar("T")


def resolve(future: asyncio.Future[T], result: T) -> None:
    """Answer, if that is still of interest."""
    if not future.done():
        future.set_result(result)


def reject(future: asyncio.Future[T], error: Exception) -> None:
    """Answer with an error, if that is still of interest."""
    if not future.done():
        future.set_exception(error)
