"""What tests of registry truth share with others."""

import contextlib
from typing import Any

from pgleaderlock.ops.dashboard import RegistrySource
from pgleaderlock.ops.dashboard._board import Board
from tests.support.operators import Hand

HOUR_S = 3600.0


async def page_of(hand: Hand, **settings: Any) -> Board:
    """The page, after one look."""
    source = RegistrySource(hand.options[1], hand.options[3], **{"where": "", "window_s": HOUR_S, **settings})
    board = Board(kind=source.kind, where="", can={})
    async with contextlib.aclosing(source.follow()) as looks:
        board.show(*await anext(looks))
    return board


def alert(board: Board, name: str) -> dict[str, Any]:
    return next(each for each in board.alerts if each["name"] == name)
