"""What can be seen of an error."""

import traceback

__all__ = ["everything_shown"]


def everything_shown(error: BaseException | None) -> str:
    """Everything that a log, a debugger or an error tracker could show of an exception, and of those behind it.

    ``from None`` only hides what is behind an exception from the standard traceback; trackers walk it all the same.
    """
    text = ""
    while error is not None:
        text += f"{error}\n{error!r}\n{error.args!r}\n{vars(error)!r}\n"
        text += "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__
    return text
