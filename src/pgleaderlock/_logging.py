"""Log lines as an event name and key=value context, on the standard library's logging alone.

``get_logger(name).bind(key1=1, key2=2).info("lock_acquired", attempt=3)`` logs
``lock_acquired attempt=3 key1=1 key2=2`` and hands the same values to handlers as ``record.event`` and
``record.fields``, for handlers that write JSON. Values are quoted when they contain anything that could be read as a
second field or a second line.
"""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r"[^\s\"=]+")


def _format_value(value: Any) -> str:
    try:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    except Exception:  # noqa: BLE001 - the str() of a user's exception may fail, and it must be logged anyway
        text = f"<{type(value).__name__}>"
    if text.isprintable():
        return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
    # json leaves DEL as it is, which terminals do not.
    return json.dumps(text).replace("\x7f", "\\u007f")


class NDLogger:
    """A logger that carries context. :meth:`bind` returns a new one; none is ever changed."""

    def __init__(self, logger: logging.Logger, context: Mapping[str, Any] | None = None) -> None:
        self._logger = logger
        self._context = dict(context or {})

    @property
    def context(self) -> dict[str, Any]:
        """The values that every line carries."""
        return dict(self._context)

    def bind(self, **context: Any) -> "NDLogger":
        """Return a logger that carries these values too."""
        return NDLogger(self._logger, {**self._context, **context})

    def log(self, level: int, event: str, **fields: Any) -> None:
        """Log one event. Its own fields come first, then the bound ones that it did not name itself.

        ``exc_info`` is the standard library's: an exception whose traceback is to be logged.
        """
        self._log(level, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        exc_info = fields.pop("exc_info", None)
        if not self._logger.isEnabledFor(level):
            return
        merged = {**fields, **{k: v for k, v in self._context.items() if k not in fields}}
        # The values are arguments, and the format is the same for each line about an event: error trackers group lines
        # by it, and a "%" in a value must stay a "%".
        # Without values, logging formats nothing.
        line = " ".join([event.replace("%", "%%") if merged else event, *(f"{key}=%s" for key in merged)])
        values = map(_format_value, merged.values())
        self._logger.log(
            level, line, *values, exc_info=exc_info, extra={"event": event, "fields": merged}, stacklevel=3
        )

    def debug(self, event: str, **fields: Any) -> None:
        """Log at DEBUG."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log at INFO."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log at WARNING."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log at ERROR."""
        self._log(logging.ERROR, event, fields)


def get_logger(name: str = "pgleaderlock") -> NDLogger:
    """Return a structured logger on top of the standard logger of that name."""
    return NDLogger(logging.getLogger(name))
