"""Edits of a tenants file's text: what is added is appended, what changes is changed in its place, all else stays as written.

Every edit parses its result and compares it with what was meant; a layout that can't be edited so is refused.
"""

from __future__ import annotations

import copy
import re
import tomllib
from typing import TYPE_CHECKING, Any

from radixserve.tenants.file import TenantsFileError
from radixserve.tenants.layout import Span, array_tables, end_of_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADING = "# Tenants of RadixServe. Of a key only its SHA-256 stands here: `radixserve tenant add | rotate` write them.\n"


class EditError(TenantsFileError):
    """The file can't be edited by a command."""


def add_tenant(text: str, values: Mapping[str, Any]) -> str:
    """`text` with a `[[tenant]]` of `values` (strings, numbers, booleans, and sequences of strings) at its end."""
    document = tomllib.loads(text)
    tenants = document.setdefault("tenant", [])
    if not isinstance(tenants, list) or any(isinstance(one, dict) and one.get("name") == values["name"] for one in tenants):
        raise EditError(f"there is a tenant {values['name']!r} already; `radixserve tenant rotate` gives it a new key")
    newline = _newline(text)
    lines = ["[[tenant]]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""]
    if text.strip():
        before = text + ("" if text.endswith("\n") else newline) + newline
    else:
        before = _HEADING + "\n"
    result = before + newline.join(lines)
    tenants.append({key: list(value) if isinstance(value, tuple) else value for key, value in values.items()})
    return _checked(result, document)


def replace_hashes(text: str, name: str, digest: str, *, keep_old: bool) -> str:
    """`text` with `digest` as the key hash of tenant `name`: its only one, or with `keep_old` the first."""
    return _put_first(text, name, "key_hashes", digest, keep_old=keep_old)


def add_curve_key(text: str, name: str, key: str) -> str:
    """`text` with `key` as a public CURVE key of tenant `name`, before those that it has."""
    return _put_first(text, name, "curve_keys", key, keep_old=True)


def _put_first(text: str, name: str, field: str, value: str, *, keep_old: bool) -> str:
    """`text` with `value` in the list `field` of tenant `name`: alone, or with `keep_old` the first."""
    document = copy.deepcopy(tomllib.loads(text))
    tenants = document.get("tenant", [])
    found = [i for i, one in enumerate(tenants) if one.get("name") == name]
    if not found:
        known = ", ".join(repr(one.get("name")) for one in tenants[:20])
        raise EditError(f"there is no tenant {name!r}" + (f"; there are {known}" if known else ""))
    tables = array_tables(text, "tenant")
    if len(tables) != len(tenants) or "name" not in tables[found[0]]:
        raise _unusual()
    tenant, spans = tenants[found[0]], tables[found[0]]
    old = list(tenant.get(field, ()))
    tenant[field] = [value, *old] if keep_old else [value]
    if field not in spans:
        place = end_of_line(text, spans["name"].end)
        return _checked(f'{text[:place]}{_newline(text)}{field} = ["{value}"]{text[place:]}', document)
    span = spans[field]
    array = _with_first(text, span, value) if keep_old and old else f'["{value}"]'
    return _checked(text[: span.start] + array + text[span.end :], document)


def _with_first(text: str, span: Span, digest: str) -> str:
    """The array at `span` with one more string (nothing in it needs escaping) before the others, laid out as they are."""
    rest = text[span.start + 1 : span.end]
    own_line = re.match(r"[ \t]*(?:#[^\n]*)?(\r?\n[ \t]*)", rest)
    if own_line is None:
        return f'["{digest}", {rest.lstrip()}'
    place = own_line.start(1)
    return f'[{rest[:place]}{own_line.group(1)}"{digest}",{rest[place:]}'


def _checked(result: str, expected: dict[str, Any]) -> str:
    try:
        same = tomllib.loads(result) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise _unusual()
    return result


def _unusual() -> EditError:
    return EditError("the file is laid out in a way that can't be edited; give each tenant a table of its own under [[tenant]]")


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _toml(value: Any) -> str:
    """A value as TOML. Strings are names, classes and hashes: nothing in them needs escaping."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_toml(one) for one in value)}]"
    return repr(value)
