"""From a Python type to a JSON Schema and back from JSON text to a value of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

_KNOWN = (
    "give a pydantic model, a dataclass, a TypedDict, a NamedTuple, an Enum, a Literal, a union, a primitive, a list, tuple, set or dict of "
    "these, a TypeAdapter, or a JSON Schema as a dict"
)
_MAX_DIGITS = 15  # before the point, where nothing is said
_AFTER_SCHEME = r"://(?:[A-Za-z0-9]+[.-])*[A-Za-z][A-Za-z0-9]*(?::[0-9]{1,4})?(?:/[!#-;=?-Z_a-z~]*)?"


class ValueSchema(GenerateJsonSchema):
    """Where pydantic describes all that it accepts, this describes what a model had better write: what is sure to be accepted."""

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """A number; where its places are limited, which no number's schema can say, its digits as a string."""
        described = super().decimal_schema(schema)
        places: int | None = schema.get("decimal_places")
        is_bounded = any(name in schema for name in ("gt", "le", "lt", "multiple_of")) or schema.get("ge", 0) != 0
        if places is not None and not is_bounded:
            num_digits = max(1, schema.get("max_digits", places + _MAX_DIGITS) - places)
            sign = "" if "ge" in schema else "-?"
            fraction = f"(?:\\.[0-9]{{1,{places}}})?" if places else ""
            return {"type": "string", "pattern": f"^{sign}(?:0|[1-9][0-9]{{0,{num_digits - 1}}}){fraction}$"}
        return next((one for one in described.get("anyOf", ()) if one.get("type") == "number"), described)

    def set_schema(self, schema: Any) -> dict[str, Any]:
        """Items that are written twice are in the set once."""
        return _without(super().set_schema(schema), "uniqueItems")

    def frozenset_schema(self, schema: Any) -> dict[str, Any]:
        """The same."""
        return _without(super().frozenset_schema(schema), "uniqueItems")

    def url_schema(self, schema: Any) -> dict[str, Any]:
        """With one of its schemes, where they are known, and a host by name. Its length is checked when it is read."""
        described = _without(super().url_schema(schema), "maxLength")
        schemes: list[str] | None = schema.get("allowed_schemes")
        if schemes:
            described = _without(described, "format") | {"pattern": f"^(?:{'|'.join(schemes)}){_AFTER_SCHEME}$"}
        return described


def _without(described: dict[str, Any], keyword: str) -> dict[str, Any]:
    return {name: value for name, value in described.items() if name != keyword}


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
        try:
            return OutputType(json.dumps(dict(json_type)), json.loads)  # pyright: ignore[reportUnknownArgumentType]
        except (TypeError, ValueError) as error:
            raise TypeError(f"json={json_type!r} is no JSON Schema: {error}") from error
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
        raise TypeError(f"json={json_type!r} can't be generated ({_first_line(error)}): {_KNOWN}") from error


def _of_adapter(adapter: TypeAdapter[Any]) -> OutputType:
    try:
        schema = adapter.json_schema(schema_generator=ValueSchema)
    except PydanticUserError as error:
        raise TypeError(f"json={adapter!r} has no JSON Schema: {_first_line(error)}") from error
    return OutputType(json.dumps(schema), adapter.validate_json)


def _first_line(error: Exception) -> str:
    """Pydantic goes on with advice about pydantic."""
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
