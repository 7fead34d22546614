"""A function's parameters as a JSON Schema, and from a model's JSON text back to checked Python values."""

from __future__ import annotations

import inspect
import json
import typing
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, PydanticSchemaGenerationError, PydanticUserError, create_model
from pydantic.fields import FieldInfo

from radixserve_lang.schema import ValueSchema
from radixserve_lang.where import caller_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic.json_schema import JsonSchemaWarningKind

_REFUSED = {
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values; use one parameter that is a list",
    inspect.Parameter.VAR_KEYWORD: "takes any name; use one parameter that is a dict or a model",
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only, but arguments come by name; take the / out of the signature",
}
#: Below these keys are names or values, not schemas: a "title" there is the user's own.
_NAMED = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})
_LITERAL = frozenset({"default", "const", "enum", "examples"})


class _Schema(ValueSchema):
    """A default that JSON can't say is left out; the function has it anyway."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {*ValueSchema.ignored_warning_kinds, "non-serializable-default"}  # noqa: RUF012


class Parameters:
    """What a function takes. Its schema is an object that allows nothing else."""

    def __init__(self, function: Callable[..., Any], name: str, descriptions: Mapping[str, str]) -> None:
        """`name` is for errors, `descriptions` are those of the parameters.

        Raises TypeError naming the function and the parameter that a model can't fill in.
        """
        self._name = name
        hints = _hints(function, name)
        self._defaults: dict[str, Any] = {}
        self._fields: dict[str, str] = {}
        definitions: dict[str, Any] = {}
        for index, parameter in enumerate(_signature(function, name).parameters.values()):
            annotation = _annotation(parameter, hints, name)
            field = f"p{index}"  # not the parameter's own name, which may be one that pydantic needs, such as "json" or "_id"
            self._fields[field] = parameter.name
            definitions[field] = (annotation, self._field(parameter, annotation, descriptions.get(parameter.name)))
        self._model = self._build(definitions)
        self.schema = json.dumps(self._json_schema(), ensure_ascii=False)
        """JSON Schema as JSON text."""

    def parse(self, text: str) -> dict[str, Any]:
        """Arguments by name, those left out by their defaults; ValueError when the text does not fit."""
        parsed = self._model.model_validate_json(text or "{}")
        given = parsed.model_fields_set
        return {name: getattr(parsed, field) if field in given else self._defaults[name] for field, name in self._fields.items()}

    def _field(self, parameter: inspect.Parameter, annotation: Any, description: str | None) -> Any:
        default: Any = ...
        if parameter.default is not inspect.Parameter.empty:
            default = parameter.default
            if isinstance(default, FieldInfo):
                raise TypeError(
                    f"tool {self._name}(): the default of parameter {parameter.name!r} is a Field; "
                    f"write {parameter.name}: Annotated[..., Field(...)] and a plain default"
                )
            self._defaults[parameter.name] = default
        told = any(isinstance(extra, FieldInfo) and extra.description for extra in getattr(annotation, "__metadata__", ()))
        said: dict[str, Any] = {} if told or description is None else {"description": description}
        return Field(default, alias=parameter.name, **said)

    def _build(self, definitions: dict[str, Any]) -> type[BaseModel]:
        config = ConfigDict(extra="forbid", protected_namespaces=())
        try:
            return create_model("Arguments", __config__=config, **definitions)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise TypeError(
                f"tool {self._name}(): {self._culprit(definitions)} has a type that JSON can't carry: {error}"
            ) from error

    def _json_schema(self) -> dict[str, Any]:
        try:
            schema = self._model.model_json_schema(schema_generator=_Schema)
        except PydanticUserError as error:
            definitions = {field: (info.annotation, ...) for field, info in self._model.model_fields.items()}
            raise TypeError(f"tool {self._name}(): {self._culprit(definitions)} has no JSON Schema: {error}") from error
        return cast("dict[str, Any]", _without_titles(schema))

    def _culprit(self, definitions: dict[str, Any]) -> str:
        """The parameter that can't be described, found by trying each alone."""
        for field, (annotation, _) in definitions.items():
            try:
                create_model("Alone", one=(annotation, ...)).model_json_schema()
            except (PydanticSchemaGenerationError, PydanticUserError):
                return f"parameter {self._fields[field]!r}"
        return "a parameter"


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise TypeError(f"tool {name}(): it has no signature to read: {error}; wrap it in a def with annotations") from error


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Annotations as types. Names are looked up where the function stands and, for a local one, where the tool is made."""
    target: Any = function if inspect.isroutine(function) or isinstance(function, type) else getattr(function, "func", None)
    if target is None:
        target = type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError:
        pass
    frame = caller_frame()
    names = {**frame.f_globals, **getattr(target, "__globals__", {})}
    try:
        return typing.get_type_hints(target, names, dict(frame.f_locals), include_extras=True)
    except NameError as error:
        raise TypeError(
            f"tool {name}(): an annotation can't be resolved: {error}; import the name at run time, not under TYPE_CHECKING"
        ) from error


def _annotation(parameter: inspect.Parameter, hints: dict[str, Any], name: str) -> Any:
    if parameter.kind in _REFUSED:
        raise TypeError(f"tool {name}(): parameter {parameter.name!r} {_REFUSED[parameter.kind]}")
    if parameter.annotation is inspect.Parameter.empty and parameter.name in ("self", "cls"):
        raise TypeError(f"tool {name}(): it is a method; make the tool of a bound one, as in rs.tool(thing.{name})")
    if parameter.annotation is inspect.Parameter.empty:
        raise TypeError(
            f"tool {name}(): parameter {parameter.name!r} has no annotation; write its type, as in {parameter.name}: str, "
            "so that the model knows what to pass"
        )
    return hints.get(parameter.name, parameter.annotation)


def _without_titles(schema: Any) -> Any:
    """Titles that pydantic makes up from names say nothing new, and would be part of every prompt."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key in _NAMED and isinstance(value, dict):
            kept[key] = {name: _without_titles(item) for name, item in cast("dict[str, Any]", value).items()}
        elif key in _LITERAL:
            kept[key] = value
        elif key != "title" or not isinstance(value, str):
            kept[key] = _without_titles(value)
    return kept
