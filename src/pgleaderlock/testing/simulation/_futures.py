"""Answers that may come when their future is done or cancelled already."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


def resolve(future: asyncio.Future[T], result: T) -> None:
    """Set the result, unless the future is done."""
    if not future.done():
        future.set_result(result)


def reject(future: asyncio.Future[T], error: Exception) -> None:
    """Set the exception, unless the future is done."""
    if not future.done():
        future.set_exception(error)
