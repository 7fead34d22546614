"""The `format`s that are enforced: some by a pattern of ours, the others by the compiler's own rule."""

from __future__ import annotations

_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"

#: Formats that the compiler gets only roughly right (it has November 31 and 10.0.0.01): the exact expression instead.
FORMAT_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "ipv4": rf"^(?:{_BYTE}\.){{3}}{_BYTE}$",
}
#: Formats that the compiler enforces. Any other it ignores in silence.
COMPILER_FORMATS = frozenset({"email", "uuid", "ipv6", "uri", "hostname", "duration"})
