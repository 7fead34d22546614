"""Where in the user's program an op stands."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def caller_frame() -> FrameType:
    """The innermost frame outside this package."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def caller_place() -> str:
    """The innermost line outside this package: `file.py:12 in function`."""
    frame = caller_frame()
    code = frame.f_code
    return f"{_shown(code.co_filename)}:{frame.f_lineno} in {code.co_name}"


@functools.lru_cache(maxsize=1024)
def _shown(path: str) -> str:
    """Relative to the working directory when the file is inside it."""
    if not os.path.isabs(path):
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
