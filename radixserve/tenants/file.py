"""The tenants file, parsed strictly: whatever is wrong is an error that names the file, the tenant and the key.

[[tenant]]                       # docs/tenants.md has all keys
name = "search"
key_hashes = ["..."]             # written by `radixserve tenant add`

[[public_prefix]]                # a prompt that all tenants may share
file = "prompts/assistant.txt"   # relative to this file
"""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from radixserve.config import ConfigError
from radixserve.tenants import fields
from radixserve_tokenizer.config import PublicPrefix, TenantConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

MAX_TENANTS = 10_000
MAX_PUBLIC_PREFIXES = 256
_SHARE_SLACK = 1e-9


class TenantsFileError(ConfigError):
    """A tenants file that can't be used."""


@dataclass(frozen=True)
class TenantsFile:
    """What a tenants file declares."""

    tenants: tuple[TenantConfig, ...] = ()
    public_prefixes: tuple[PublicPrefix, ...] = ()


def load_tenants(path: Path) -> TenantsFile:
    """The file that a server runs with; raises `TenantsFileError`, also when it declares no tenant: that would let everyone in."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise TenantsFileError(f"{path}: {error.strerror or error}; `radixserve tenant add NAME` makes a tenants file") from error
    except UnicodeDecodeError as error:
        raise TenantsFileError(f"{path}: not UTF-8: {error}") from error
    parsed = parse_tenants(text, path)
    if not parsed.tenants:
        raise TenantsFileError(f"{path}: no [[tenant]]; `radixserve tenant add NAME --file {path}` adds one")
    return parsed


def parse_tenants(text: str, path: Path) -> TenantsFile:
    """The same from the file's text; `path` is where it lies. A file without tenants is none to serve with, but can be added to."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TenantsFileError(f"{path}: {error}") from error
    for key in document:
        if key not in ("tenant", "public_prefix"):
            raise TenantsFileError(f"{path}: unknown table or key {key!r}; there are [[tenant]] and [[public_prefix]]")
    tenants = tuple(_tenant(table, f"{path}: {_label(table, i)}") for i, table in _tables(document, "tenant", path, MAX_TENANTS))
    prefixes = tuple(
        _public_prefix(table, f"{path}: public_prefix {i}", path.parent)
        for i, table in _tables(document, "public_prefix", path, MAX_PUBLIC_PREFIXES)
    )
    _check_together(tenants, prefixes, path)
    return TenantsFile(tenants, prefixes)


def _tables(document: Mapping[str, Any], name: str, path: Path, most: int) -> list[tuple[int, dict[str, Any]]]:
    """The tables of that name, numbered from 1."""
    found = document.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise TenantsFileError(f"{path}: write each {name} as a table of its own, under [[{name}]] in double brackets")
    tables: list[dict[str, Any]] = found
    if len(tables) > most:
        raise TenantsFileError(f"{path}: {len(tables)} tables [[{name}]]; there may be at most {most}")
    return list(enumerate(tables, 1))


def _label(table: Mapping[str, Any], number: int) -> str:
    name = table.get("name")
    return f"tenant {name[:64]!r}" if isinstance(name, str) and name else f"tenant {number}"


def _fail(place: str, text: str) -> NoReturn:
    raise TenantsFileError(f"{place}: {text}")


def _checked(table: Mapping[str, Any], checks: Mapping[str, Callable[[Any], Any]], place: str) -> dict[str, Any]:
    """The table's values, each by the check of its key."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        check = checks.get(key)
        if check is None:
            _fail(place, f"unknown key {key!r}; the keys are {', '.join(checks)}")
        try:
            values[key] = check(value)
        except fields.FieldError as error:
            _fail(place, f"{key} {error}")
    return values


def _tenant(table: Mapping[str, Any], place: str) -> TenantConfig:
    values = _checked(table, fields.TENANT, place)
    if "name" not in values:
        _fail(place, "name is missing")
    tenant = TenantConfig(**values)
    if tenant.reserved_share > tenant.max_share:
        _fail(place, f"reserved_share ({tenant.reserved_share}) must not be above max_share ({tenant.max_share})")
    return tenant


def _public_prefix(table: Mapping[str, Any], place: str, folder: Path) -> PublicPrefix:
    values = _checked(table, fields.PUBLIC_PREFIX, place)
    if ("text" in values) == ("file" in values):
        _fail(place, "needs either text or file")
    text = values["text"] if "text" in values else _read(folder / values["file"], place)
    return PublicPrefix(text=text, role=values.get("role", "system"))


def _read(path: Path, place: str) -> str:
    try:
        if path.stat().st_size > fields.MAX_PREFIX_BYTES:
            _fail(place, f"file {path} has more than {fields.MAX_PREFIX_BYTES} bytes")
        return fields.prefix_text(path.read_bytes().decode("utf-8"))
    except OSError as error:
        _fail(place, f"file {path}: {error.strerror or error}")
    except UnicodeDecodeError:
        _fail(place, f"file {path} is not UTF-8")
    except fields.FieldError as error:
        _fail(place, f"file {path} {error}")


def _check_together(tenants: Sequence[TenantConfig], prefixes: Sequence[PublicPrefix], path: Path) -> None:
    """What no tenant can be wrong in alone."""
    for name, count in Counter(tenant.name for tenant in tenants).items():
        if count > 1:
            raise TenantsFileError(f"{path}: tenant {name!r}: name is given to {count} tenants")
    owners: dict[str, str] = {}
    for tenant in tenants:
        for digest in tenant.key_hashes:
            owner = owners.setdefault(digest, tenant.name)
            if owner != tenant.name:
                raise TenantsFileError(
                    f"{path}: tenant {tenant.name!r}: key_hashes has {digest[:8]}..., which is a key of tenant {owner!r} already"
                )
    _check_curve_keys(tenants, path)
    reserved = sum(tenant.reserved_share for tenant in tenants)
    if reserved > 1 + _SHARE_SLACK:
        raise TenantsFileError(f"{path}: reserved_share of all tenants together is {reserved:g}; it must be at most 1")
    seen: dict[PublicPrefix, int] = {}
    for number, prefix in enumerate(prefixes, 1):
        first = seen.setdefault(prefix, number)
        if first != number:
            raise TenantsFileError(f"{path}: public_prefix {number}: the same role and text as public_prefix {first}")


def _check_curve_keys(tenants: Sequence[TenantConfig], path: Path) -> None:
    owners: dict[str, str] = {}
    for tenant in tenants:
        for key in tenant.curve_keys:
            owner = owners.setdefault(key, tenant.name)
            if owner != tenant.name:
                raise TenantsFileError(
                    f"{path}: tenant {tenant.name!r}: curve_keys has {key[:8]}..., which is a key of tenant {owner!r} already"
                )
