"""Ids of calls: the same for the same generation, and different for any two that a conversation could meet."""

from __future__ import annotations

import hashlib

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LENGTH = 22


def call_id(place: str, index: int, length: int = 0) -> str:
    """The id of call number `index` of the generation that `place` tells from all others.

    "call_" and 22 characters; with a `length` so many letters and digits instead, a letter first (such an id is a plain
    name, which templates see as it is and may measure).
    """
    number = int.from_bytes(hashlib.blake2b(f"{place},{index}".encode(), digest_size=32).digest(), "big")
    text = base62(number)
    return _BASE62[10 + number % 52] + text[: length - 1] if length else f"call_{text[:_LENGTH]}"


def base62(number: int) -> str:
    """A number in letters and digits, the lowest digit first."""
    digits: list[str] = []
    while number:
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return "".join(digits).ljust(_LENGTH, "0")
