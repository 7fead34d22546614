"""What a test did wrong, or found out."""

from __future__ import annotations

from radixserve_lang.errors import RadixServeError


class ScriptError(RadixServeError, AssertionError):
    """A script was not used as it was written: something was left over, or an op had no (fitting) answer."""


class DivergedError(RadixServeError, AssertionError):
    """A program did not do what it did when it was recorded."""


class RecordingError(RadixServeError, ValueError):
    """A file is no recording that this version can play."""
