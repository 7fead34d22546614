"""The text of a schema, before anything is worked out: is it JSON, and within limits?"""

from __future__ import annotations

import json
from typing import Any

from radixserve_tokenizer.grammar.errors import ConstraintError

MAX_SCHEMA_BYTES = 256 << 10
MAX_DEPTH = 64
"""Of objects and lists inside each other."""
MAX_NODES = 10_000
"""Objects, lists and values."""


def parse_schema(source: str) -> Any:
    """The schema; raises `ConstraintError`. Takes milliseconds at most."""
    if len(source) > MAX_SCHEMA_BYTES or len(source.encode(errors="surrogatepass")) > MAX_SCHEMA_BYTES:
        raise ConstraintError(f"it is larger than {MAX_SCHEMA_BYTES} bytes", "")
    try:
        schema = json.loads(source, parse_constant=_no_constant, object_pairs_hook=_object)
        json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise ConstraintError("it has a lone surrogate, which is no character", "") from error
    except RecursionError as error:
        raise ConstraintError(f"it is nested more than {MAX_DEPTH} deep", "") from error
    except ValueError as error:
        raise ConstraintError(f"it is not valid JSON: {error}", "") from error
    if not isinstance(schema, dict | bool):
        raise ConstraintError("a schema must be an object, true or false", "")
    _check_size(schema)
    return schema


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _check_size(schema: Any) -> None:
    count = 0
    level: list[tuple[str, Any]] = [("", schema)]
    for _ in range(MAX_DEPTH + 1):
        count += len(level)
        if count > MAX_NODES:
            raise ConstraintError(f"it has more than {MAX_NODES} parts", level[0][0])
        level = [member for pointer, value in level for member in _members(pointer, value)]
        if not level:
            return
    raise ConstraintError(f"it is nested more than {MAX_DEPTH} deep", level[0][0])


def _members(pointer: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}", member) for key, member in value.items()]
    if isinstance(value, list):
        return [(f"{pointer}/{index}", member) for index, member in enumerate(value)]
    return []
