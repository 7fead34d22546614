"""docs/protocol.md says what protocol.py has: every message and value, every field with its type and default, and nothing else."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from radixserve_tokenizer import protocol

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"


def structs() -> dict[str, type[msgspec.Struct]]:
    """By their name in the document: the tag, or the class of what has none."""
    found: dict[str, type[msgspec.Struct]] = {}
    for value in vars(protocol).values():
        is_struct = isinstance(value, type) and issubclass(value, msgspec.Struct)
        if is_struct and value is not protocol.Message and value.__module__ == protocol.__name__:
            tag = value.__struct_config__.tag
            found[str(tag) if tag else value.__name__] = value
    return found


def type_name(hint: Any) -> str:
    """In the words of msgpack."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is type(None):
        return "nil"
    if origin is Literal:
        return ", ".join(f'`"{choice}"`' for choice in args)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(arg) for arg in args))
    if origin is tuple:
        return f"list of {type_name(args[0])}"
    if origin is dict:
        return "map"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        tag = hint.__struct_config__.tag
        name = str(tag) if tag else hint.__name__
        return f"[{name}](#{name.lower()})"
    return {int: "int", float: "float", str: "str", bytes: "bin", bool: "bool", Any: "any"}[hint]


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """As a client leaves it out; empty for what it must send."""
    if field.default_factory is not msgspec.NODEFAULT:
        value: Any = field.default_factory()
    elif field.default is not msgspec.NODEFAULT:
        value = field.default
    else:
        return ""
    if value is None:
        return "nil"
    if isinstance(value, msgspec.Struct):
        assert value == type(value)()
        return "{}"
    return f"`{json.dumps(value)}`"


def rows_of(struct: type[msgspec.Struct]) -> list[tuple[str, str, str]]:
    hints = get_type_hints(struct)
    return [(field.name, type_name(hints[field.name]), default_of(field)) for field in msgspec.structs.fields(struct)]


def sections() -> dict[str, str]:
    """Text under the headings of messages and values: `### gen`."""
    text = PAGE.read_text(encoding="utf-8")
    parts = re.split(r"^### (\w+)$", text, flags=re.MULTILINE)
    return {
        name: re.split(r"^## ", body, maxsplit=1, flags=re.MULTILINE)[0]
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def written_rows(body: str) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    if "| field | type | default | meaning |" not in body:
        return found
    table = body.split("| field | type | default | meaning |", 1)[1].split("\n\n", 1)[0]
    for line in table.splitlines():
        if line.startswith("| `"):
            name, kind, default, _ = (cell.strip() for cell in line.strip("|").split(" | ", 3))
            found.append((name.strip("`"), kind, default))
    return found


def test_every_message_and_value_is_there_and_nothing_else() -> None:
    assert list(sections()) == list(structs())


def test_every_field_is_as_it_is() -> None:
    documented = sections()
    for name, struct in structs().items():
        assert written_rows(documented[name]) == rows_of(struct), name


def test_versions_and_limits() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"This page describes version {protocol.PROTOCOL_VERSION}." in text
    assert f"{protocol.MAX_FRAME_BYTES >> 20} MiB" in text


def test_a_client_sends_these_and_hears_those() -> None:
    text = PAGE.read_text(encoding="utf-8")
    said, heard = text.split("## What the server sends")
    tags = {name for name, struct in structs().items() if issubclass(struct, protocol.Message)}
    events = {str(event.__struct_config__.tag) for event in get_args(protocol.Event)}
    assert {name for name in re.findall(r"^### (\w+)$", heard, re.MULTILINE)} & tags == events
    assert {name for name in re.findall(r"^### (\w+)$", said, re.MULTILINE)} & tags == tags - events


def test_every_code_of_a_failure_is_there() -> None:
    root = PAGE.parent.parent / "tokenizer_proc" / "radixserve_tokenizer"
    source = "\n".join(path.read_text(encoding="utf-8") for path in root.rglob("*.py"))
    codes = set(re.findall(r'\bcode="([a-z_]+)"', source)) | set(re.findall(r'Refusal\(\d+, "([a-z_]+)"', source))
    text = PAGE.read_text(encoding="utf-8")
    table = text.split("## Errors", 1)[1].split("\n## ", 1)[0]
    documented = set(re.findall(r"^\| `([a-z_]+)`", table, re.MULTILINE))
    assert len(codes) > 25
    assert not codes - documented
    assert not {code for code in documented if f'"{code}"' not in source}
