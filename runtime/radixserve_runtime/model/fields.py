"""Typed look-ups in a checkpoint's settings, whose errors name the file and the key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.model.errors import BrokenCheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Fields:
    """Read-only settings. A key that is absent or null gives the default; without a default it is an error."""

    def __init__(self, values: Mapping[str, object], source: Path) -> None:
        self._values = values
        self.source = source

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self._values.get(key) is not None

    def raw(self, key: str) -> object:
        """The value as it stands; None if absent."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; floats that are whole count."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "a whole number")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.integer(key, default)
        if value <= 0:
            raise self._wrong(key, value, "above zero")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Any finite number above zero: all of a decoder's are."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._wrong(key, value, "a finite number above zero")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def group(self, key: str) -> Fields | None:
        """A nested object; None if absent or null."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Fields(value, self.source)

    def _get(self, key: str, default: object) -> object:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise BrokenCheckpointError(f"{self.source} has no {key!r}")
        return value

    def _wrong(self, key: str, value: object, wanted: str) -> BrokenCheckpointError:
        return BrokenCheckpointError(f"{self.source}: {key!r} is {value!r}; it must be {wanted}")
