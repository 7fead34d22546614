"""The `format`s that are enforced, each by an expression for it (or a narrower one)."""

from __future__ import annotations

_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"


_HEX = "[0-9a-fA-F]"
_H16 = f"{_HEX}{{1,4}}"
#: Narrower than they may be (a label has up to 63 characters, a local part 64). Every step of a count is a rule, so characters are
#: counted, each with what may stand before it, and not words of characters.
_HOST = r"[a-zA-Z0-9](?:[-.]?[a-zA-Z0-9]){0,29}"
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_LS32 = rf"(?:{_H16}:{_H16}|(?:{_BYTE}\.){{3}}{_BYTE})"
_IPV6 = "|".join(
    [f"(?:{_H16}:){{6}}{_LS32}", f"::(?:{_H16}:){{5}}{_LS32}"]
    + [f"(?:(?:{_H16}:){{0,{left}}}{_H16})?::(?:{_H16}:){{{4 - left}}}{_LS32}" for left in range(5)]
    + [f"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}", f"(?:(?:{_H16}:){{0,6}}{_H16})?::"]
)
_ESCAPED = rf"%{_HEX}{{2}}"
_PCHAR = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|{_ESCAPED})"
_URI_REST = rf"(?:/{_PCHAR}*)*(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_AUTHORITY = rf"(?:(?:[a-zA-Z0-9._~!$&'()*+,;=:-]|{_ESCAPED})*@)?(?:[a-zA-Z0-9._~!$&'()*+,;=-]|{_ESCAPED})+(?::\d{{0,5}})?"
_D, _T = r"\d{1,9}", r"\d{1,9}"
_CLOCK = rf"T(?:{_T}H(?:{_T}M(?:{_T}S)?)?|{_T}M(?:{_T}S)?|{_T}S)"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"

FORMAT_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "ipv4": rf"^(?:{_BYTE}\.){{3}}{_BYTE}$",
    "email": rf"^{_ATOM}(?:\.?{_ATOM}){{0,23}}@{_HOST}$",
    "uuid": f"^{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "hostname": f"^{_HOST}$",
    "ipv6": f"^(?:{_IPV6})$",
    "uri": rf"^[a-zA-Z][a-zA-Z0-9+.-]*:(?://{_AUTHORITY}{_URI_REST}|{_PCHAR}+{_URI_REST})$",
    "uri-reference": rf"^(?:[a-zA-Z][a-zA-Z0-9+.-]*:)?(?://{_AUTHORITY})?{_URI_REST}$",
    "duration": rf"^P(?:{_D}Y(?:{_D}M(?:{_D}D)?)?(?:{_CLOCK})?|{_D}M(?:{_D}D)?(?:{_CLOCK})?|{_D}D(?:{_CLOCK})?|{_CLOCK}|{_D}W)$",
    "json-pointer": f"^{_POINTER}$",
    "byte": r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
#: As OpenAPI has them: bounds of whole numbers.
NUMBER_FORMATS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
#: Say how a value is stored or shown, and nothing that JSON text could break.
ANNOTATION_FORMATS = frozenset({"float", "double", "password", "binary"})
