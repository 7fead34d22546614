"""What each key of the tenants file may be. A check returns the value as the configuration takes it, or raises `FieldError`.

The text of a `FieldError` goes on from the key's name. Hashes are never quoted: a key pasted there by mistake must not reach a log.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, cast, get_args

from radixserve_tokenizer.protocol import Priority

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
MAX_PREFIX_BYTES = 1 << 20
MAX_KEYS = 64
_MAX_INTEGER = 10**12
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_CURVE_KEY = re.compile(r"[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")
_RESERVED = "anonymous"
_ROLES = ("system", "user", "assistant", "")

CLASSES: tuple[str, ...] = get_args(Priority)


class FieldError(ValueError):
    """A value that a key can't have."""


def name(value: Any) -> str:
    """A tenant's name: it is a label of metrics and a key of accounts, so it is short and plain."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise FieldError(
            f"must be 1 to 64 letters, digits, '.', '_' or '-' of ASCII, beginning with a letter or digit, not {_show(value)}"
        )
    if value == _RESERVED:
        raise FieldError(f"must not be {_RESERVED!r}: that stands for everyone on a server without tenants")
    return value


def _key_hashes(value: Any) -> tuple[str, ...]:
    hashes = _strings(value, "a list of SHA-256 hashes in hex")
    if len(hashes) > MAX_KEYS:
        raise FieldError(f"has {len(hashes)} hashes; a tenant may have at most {MAX_KEYS} keys")
    lowered = tuple(one.lower() for one in hashes)
    for number, one in enumerate(lowered, 1):
        if not _HASH.fullmatch(one):
            raise FieldError(
                f"number {number} is not a SHA-256 in hex (64 digits); a key itself never stands here: "
                "`radixserve tenant add` and `rotate` write its hash"
            )
    if len(set(lowered)) < len(lowered):
        raise FieldError("has the same hash twice")
    return lowered


def curve_keys(value: Any) -> tuple[str, ...]:
    """Public CURVE keys."""
    keys = _strings(value, "a list of public CURVE keys")
    if len(keys) > MAX_KEYS:
        raise FieldError(f"has {len(keys)} keys; a tenant may have at most {MAX_KEYS}")
    for number, one in enumerate(keys, 1):
        if not _CURVE_KEY.fullmatch(one):
            raise FieldError(
                f"number {number} is not a public CURVE key (40 characters); `radixserve keygen --tenant` writes them"
            )
    if len(set(keys)) < len(keys):
        raise FieldError("has the same key twice")
    return keys


def classes(value: Any) -> tuple[str, ...]:
    """Priority classes."""
    given = _strings(value, f"a list of {', '.join(map(repr, CLASSES))}")
    if not given:
        raise FieldError("must not be empty; leave it out to allow all classes")
    for one in given:
        if one not in CLASSES:
            raise FieldError(f"has {_show(one)}; the classes are {', '.join(map(repr, CLASSES))}")
    if len(set(given)) < len(given):
        raise FieldError("has the same class twice")
    return given


def weight(value: Any) -> float:
    """A number above 0; bounded, so that the most and the least entitled tenant stay comparable."""
    return _number(value, MIN_WEIGHT, MAX_WEIGHT)


def share(value: Any) -> float:
    """A part of the KV pool."""
    return _number(value, 0.0, 1.0)


def _max_share(value: Any) -> float:
    if share(value) == 0:
        raise FieldError("must be above 0: a tenant without any KV can't be served")
    return share(value)


def limit(value: Any) -> int:
    """A count; 0 is no limit."""
    if type(value) is not int or not 0 <= value <= _MAX_INTEGER:
        raise FieldError(f"must be an integer from 0 (no limit) to {_MAX_INTEGER}, not {_show(value)}")
    return value


def _admin(value: Any) -> bool:
    if not isinstance(value, bool):
        raise FieldError(f"must be true or false, not {_show(value)}")
    return value


def prefix_text(value: Any) -> str:
    """The text of a public prefix."""
    if not isinstance(value, str):
        raise FieldError(f"must be a string, not {_show(value)}")
    if not value:
        raise FieldError("must not be empty")
    if len(value.encode()) > MAX_PREFIX_BYTES:
        raise FieldError(f"has more than {MAX_PREFIX_BYTES} bytes")
    if "\0" in value:
        raise FieldError("must not have the character U+0000")
    return value


def _file(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise FieldError(f"must be a path, not {_show(value)}")
    return value


def _role(value: Any) -> str:
    if value not in _ROLES:
        raise FieldError(f"must be one of {', '.join(map(repr, _ROLES))} (the last: raw text), not {_show(value)}")
    return cast("str", value)


def _strings(value: Any, kind: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise FieldError(f"must be {kind}")
    return tuple(value)


def _number(value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not low <= value <= high:
        raise FieldError(f"must be a number from {low:g} to {high:g}, not {_show(value)}")
    return float(value)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


TENANT: Mapping[str, Callable[[Any], Any]] = {
    "name": name,
    "key_hashes": _key_hashes,
    "curve_keys": curve_keys,
    "weight": weight,
    "classes": classes,
    "requests_per_minute": limit,
    "tokens_per_minute": limit,
    "max_running": limit,
    "max_queued": limit,
    "max_programs": limit,
    "max_context": limit,
    "reserved_share": share,
    "max_share": _max_share,
    "admin": _admin,
}
"""Keys of a `[[tenant]]`, in the order in which they are written."""

PUBLIC_PREFIX: Mapping[str, Callable[[Any], str]] = {"text": prefix_text, "file": _file, "role": _role}
"""Keys of a `[[public_prefix]]`."""
