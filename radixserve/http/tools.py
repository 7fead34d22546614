"""Tools of a request in the wire's form, whichever API sent them: what they may be, how many, and which of them may be called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import orjson

from radixserve.http.body import json_depth
from radixserve.http.errors import BadRequestError
from radixserve.http.fields import show
from radixserve_tokenizer.protocol import ToolSpec, ToolUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Literal

    from radixserve.http.config import HttpConfig

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True, kw_only=True)
class AskedTools:
    """The tools that the model is told of, and how it may call them (None: not at all)."""

    specs: tuple[ToolSpec, ...] = ()
    use: ToolUse | None = None


NO_TOOLS = AskedTools()


def as_object(value: Any, path: str) -> dict[str, Any]:
    """`value`, which must be an object."""
    if not isinstance(value, dict):
        raise BadRequestError(f"'{path}' must be an object, not {show(value)}.", param=path, code="invalid_type")
    return cast("dict[str, Any]", value)


def as_list(value: Any, path: str, most: int) -> list[Any]:
    """`value`, which must be a list of at most `most` items; null is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequestError(f"'{path}' must be a list, not {show(value)}.", param=path, code="invalid_type")
    if len(value) > most:
        raise BadRequestError(
            f"'{path}' may have at most {most} items, not {len(value)}.", param=path, code="array_above_max_length"
        )
    return value


def as_string(value: Any, path: str) -> str:
    """`value`, which must be a string."""
    if not isinstance(value, str):
        raise BadRequestError(f"'{path}' must be a string, not {show(value)}.", param=path, code="invalid_type")
    return value


def tool_spec(function: dict[str, Any], path: str, config: HttpConfig, *, schema: str = "parameters") -> ToolSpec:
    """One tool from an object with `name`, `description`, `strict` and, under the name `schema`, the arguments' JSON Schema."""
    name = as_string(function.get("name"), f"{path}.name")
    if not _NAME.fullmatch(name):
        raise BadRequestError(
            f"'{path}.name' must be 1 to 128 letters, digits, '_', '-' or '.', not {show(name)}.",
            param=f"{path}.name",
            code="invalid_value",
        )
    description = function.get("description")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise BadRequestError(
            f"'{path}.strict' must be true or false, not {show(strict)}.", param=f"{path}.strict", code="invalid_type"
        )
    return ToolSpec(
        name=name,
        description="" if description is None else as_string(description, f"{path}.description"),
        parameters=_schema(function.get(schema), f"{path}.{schema}", config),
        strict=bool(strict),
    )


def _schema(value: Any, path: str, config: HttpConfig) -> str:
    """The schema as JSON text; none and an empty one mean that the tool takes no arguments."""
    if value is None or value == {}:
        return ""
    if json_depth(as_object(value, path), config.max_json_depth) > config.max_json_depth:
        raise BadRequestError(
            f"'{path}' nests deeper than {config.max_json_depth} levels.", param=path, code="invalid_json_schema"
        )
    text = orjson.dumps(value)
    if len(text) > config.max_tool_bytes:
        raise BadRequestError(
            f"'{path}' has {len(text)} bytes as JSON; a tool's schema may have {config.max_tool_bytes}.",
            param=path,
            code="invalid_json_schema",
        )
    return text.decode()


def check_tools(specs: Iterable[ToolSpec], path: str, config: HttpConfig) -> tuple[ToolSpec, ...]:
    """All tools of a request: no name twice, and together within the limit."""
    checked = tuple(specs)
    names: set[str] = set()
    for spec in checked:
        if spec.name in names:
            raise BadRequestError(f"'{path}' has two tools of the name {show(spec.name)}.", param=path, code="invalid_value")
        names.add(spec.name)
    size = sum(len(spec.name) + len(spec.description) + len(spec.parameters) for spec in checked)
    if size > config.max_tools_bytes:
        raise BadRequestError(
            f"'{path}' have {size} characters in all; at most {config.max_tools_bytes} are taken.",
            param=path,
            code="string_above_max_length",
        )
    return checked


def asked_tools(
    specs: tuple[ToolSpec, ...],
    mode: Literal["auto", "required", "none"],
    *,
    names: Sequence[str] = (),
    parallel: bool = True,
    path: str = "tool_choice",
) -> AskedTools:
    """Tools, and the choice among them; a choice of tools that are not there is a 400 that names `path`."""
    known = {spec.name for spec in specs}
    for name in names:
        if name not in known:
            raise BadRequestError(
                f"'{path}' names the tool {show(name)}, which is not in 'tools'.", param=path, code="invalid_value"
            )
    if not specs:
        if mode == "required":
            raise BadRequestError(f"'{path}' asks for a call, but there are no 'tools'.", param=path, code="invalid_value")
        return NO_TOOLS
    if mode == "none":
        return AskedTools(specs=specs)  # the model still sees them, so that the prompt stays the same for the cache
    return AskedTools(specs=specs, use=ToolUse(mode=mode, names=tuple(dict.fromkeys(names)), parallel=parallel))
