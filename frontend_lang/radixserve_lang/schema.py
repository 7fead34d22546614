"""From a Python type to a JSON Schema and back from JSON text to a value of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter


@dataclass(frozen=True, slots=True)
class OutputType:
    """What a constrained generation must match, and how its text becomes a value (ValueError when it does not fit)."""

    schema: str
    """JSON Schema as JSON text."""
    parse: Callable[[str], Any]


def output_type(json_type: Any) -> OutputType:
    """For a pydantic model, dataclass, TypedDict, Literal, union, primitive, `list[...]`, TypeAdapter, or a JSON Schema as a dict.

    Raises TypeError for a type without a JSON Schema. With a schema as a dict the value is what `json.loads` makes of
    the text: generation has matched it to the schema already.
    """
    if isinstance(json_type, Mapping):
        return OutputType(json.dumps(dict(json_type)), json.loads)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(json_type, TypeAdapter):
        return _of_adapter(json_type)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(json_type, Hashable):
        return _of_type(json_type)
    return _of_adapter(_adapter(json_type))


@functools.lru_cache(maxsize=256)
def _of_type(json_type: Any) -> OutputType:
    return _of_adapter(_adapter(json_type))


def _adapter(json_type: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(json_type)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise TypeError(f"json={json_type!r} can't be generated: {error}") from error


def _of_adapter(adapter: TypeAdapter[Any]) -> OutputType:
    try:
        schema = adapter.json_schema()
    except PydanticUserError as error:
        raise TypeError(f"json={adapter!r} has no JSON Schema: {error}") from error
    return OutputType(json.dumps(schema), adapter.validate_json)
