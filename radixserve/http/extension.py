"""What a client may tell of its agent program: the `radixserve` object of a request, or the headers X-RadixServe-..."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from radixserve.http.errors import BadRequestError
from radixserve.http.fields import show
from radixserve.http.tools import as_object

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ID_CHARS = 128
MAX_LEASE_S = 3600.0
FIELDS = ("program_id", "parent", "lease_s")


class Extension(NamedTuple):
    """Of which program a request is, by which it was started, and how long its KV is to be kept after the answer."""

    program_id: str = ""
    parent: str = ""
    lease_s: float = 0.0

    @property
    def names_program(self) -> bool:
        """Whether it says of which program the request is."""
        return bool(self.program_id or self.parent)


def find_extension(headers: Mapping[str, str], value: Any, *, num_choices: int = 1) -> Extension:
    """From the body's object `value`, and from the headers what it does not say; raises `BadRequestError`."""
    body = {} if value is None else as_object(value, "radixserve")
    for name in body:
        if name not in FIELDS:
            raise BadRequestError(
                f"'radixserve' has the unknown field {show(name)}; it may have {', '.join(FIELDS)}.",
                param="radixserve",
                code="invalid_value",
            )
    program_id = _id(headers, body, "program_id")
    parent = _id(headers, body, "parent")
    lease_s = _lease_s(headers, body)
    if parent and parent == program_id:
        raise _bad("parent", "must be another program than 'program_id'")
    if lease_s and not program_id:
        raise _bad("lease_s", "needs a 'program_id', whose next request ends the lease")
    if lease_s and num_choices != 1:
        raise _bad("lease_s", "needs a single choice ('n' 1 and one prompt)")
    return Extension(program_id, parent, lease_s)


def header_of(field: str) -> str:
    """The header that says the same as a field."""
    return "x-radixserve-" + field.replace("_", "-")


def _id(headers: Mapping[str, str], body: dict[str, Any], field: str) -> str:
    value = body.get(field)
    if value is None:
        value = headers.get(header_of(field))
    if value is None:
        return ""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS or not value.isprintable():
        raise _bad(field, f"must be 1 to {MAX_ID_CHARS} printable characters")
    return value


def _lease_s(headers: Mapping[str, str], body: dict[str, Any]) -> float:
    value = body.get("lease_s")
    if value is None:
        text = headers.get(header_of("lease_s"))
        if text is None:
            return 0.0
        try:
            value = float(text)
        except ValueError:
            value = text
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and 0 <= value <= MAX_LEASE_S):
        raise _bad("lease_s", f"must be a number of seconds from 0 to {MAX_LEASE_S:g}, not {show(value)}")
    return float(value)


def _bad(field: str, what: str) -> BadRequestError:
    return BadRequestError(f"'radixserve.{field}' {what}.", param=f"radixserve.{field}", code="invalid_value")
