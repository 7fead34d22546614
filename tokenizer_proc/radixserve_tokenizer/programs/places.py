"""Where in a conversation something is said: a hash of all that stands before it, as it was told and not as it is encoded.

So it is known before anything is rendered, and a turn has one place whether it was generated there or came back as text.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.programs.log import LogMark
    from radixserve_tokenizer.programs.memory import Turn


def beginning(log: LogMark, tools: Sequence[Any]) -> bytes:
    """Before the first message, after what the log holds."""
    return _after(b"", [log.length, log.hash, tools])


def after_tools(place: bytes, tools: Sequence[Any]) -> bytes:
    """The tools were changed."""
    return _after(place, ["tools", tools])


def after_message(place: bytes, role: str, text: str, fields: Mapping[str, Any]) -> bytes:
    """A message was told."""
    return _after(place, ["message", role, text, fields])


def after_turn(place: bytes, turn: Turn) -> bytes:
    """A turn of the assistant was generated, or told."""
    return _after(place, ["turn", *turn])


def after_ids(place: bytes, log: LogMark) -> bytes:
    """A turn that was put together: what the log holds then says all of it."""
    return _after(place, ["ids", log.length, log.hash])


def _after(place: bytes, said: list[Any]) -> bytes:
    try:
        told = json.dumps(said, ensure_ascii=True, sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # no template takes it either
        told = "?"
    return hashlib.blake2b(place + told.encode(), digest_size=16).digest()
