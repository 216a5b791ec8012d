"""Virtual time for the tests on pytest-asyncio and on anyio that ask for it."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from pgleaderlock.testing import VirtualTimeLoop


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line("markers", "virtual_time: run on the loop whose clock jumps instead of waiting")


@pytest.hookimpl(optionalhook=True)  # of pytest-asyncio, from 1.4 on
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, type[asyncio.AbstractEventLoop]]:
    """Choose the loop of a test on pytest-asyncio."""
    return (
        {"virtual": VirtualTimeLoop} if item.get_closest_marker("virtual_time") else {"real": asyncio.SelectorEventLoop}
    )


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Choose the loop of a test on anyio: an election needs asyncio, and not trio."""
    is_virtual = request.node.get_closest_marker("virtual_time")
    return "asyncio", {"loop_factory": VirtualTimeLoop} if is_virtual else {}
