"""Checks of single fields, and how a field that does not pass is told: its name, what it may be, what it was.

The validators get the server's `HttpConfig` as pydantic's context.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args, get_origin

import annotated_types

from radixserve.http.config import HttpConfig
from radixserve.http.errors import BadRequestError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError, ValidationInfo
    from pydantic.fields import FieldInfo

    from radixserve_tokenizer.protocol import Priority

_KINDS: dict[Any, str] = {float: "a number", int: "an integer", bool: "true or false", str: "a string"}

_TIERS: dict[str, Priority] = {
    "auto": "standard",
    "default": "standard",
    "scale": "standard",
    "flex": "background",
    "priority": "interactive",
}
_PRIORITIES: tuple[Priority, ...] = ("interactive", "standard", "background")


def limits(info: ValidationInfo) -> HttpConfig:
    """The server's limits, from the context of a validation."""
    context = info.context
    assert isinstance(context, HttpConfig)
    return context


def show(value: Any) -> str:
    """A value as an error may quote it: short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_int(value: Any) -> bool:
    """An integer as JSON means it: `true` is none."""
    return type(value) is int


def bad_fields(model: type[BaseModel], error: ValidationError) -> BadRequestError:
    """The first fault of a request, with the field's limits."""
    fault = error.errors(include_url=False, include_context=False)[0]
    name = str(fault["loc"][0]) if fault["loc"] else ""
    field = model.model_fields.get(name)
    allowed = describe(field) if field is not None else str(fault["msg"])
    return BadRequestError(f"'{name}' must be {allowed}, not {show(fault['input'])}.", param=name or None, code="invalid_value")


def describe(field: FieldInfo) -> str:
    """What a field may be, e.g. "a number from 0 to 2"."""
    kind = next((one for one in _alternatives(field.annotation) if one is not type(None)), Any)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(one) for one in get_args(kind))
    return _KINDS.get(kind, "of another type") + _bounds(field.metadata)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _bounds(metadata: list[Any]) -> str:
    low = high = ""
    for one in metadata:
        match one:
            case annotated_types.Ge(ge=bound):
                low = f"{bound}"
            case annotated_types.Gt(gt=bound):
                low = f"above {bound}"
            case annotated_types.Le(le=bound):
                high = f"{bound}"
            case _:
                pass
    if low and high:
        return f" {low} up to {high}" if low.startswith("above") else f" from {low} to {high}"
    if low:
        return f" {low}" if low.startswith("above") else f" of at least {low}"
    return f" of at most {high}" if high else ""


# ---- validators ---------------------------------------------------------------------------------------------------


def check_n(value: int | None, info: ValidationInfo) -> int | None:
    """1 to `max_n`."""
    most = limits(info).max_n
    if value is not None and not 1 <= value <= most:
        raise BadRequestError(
            f"'n' must be an integer from 1 to {most} (this server's limit), not {show(value)}.", param="n", code="invalid_value"
        )
    return value


def parse_stop(value: Any, info: ValidationInfo) -> tuple[str, ...]:
    """A string, a list of strings, or null; duplicates are dropped."""
    config = limits(info)
    name = info.field_name or "stop"
    if value is None:
        return ()
    given = value if isinstance(value, list) else [value]
    if len(given) > config.max_stop_strings:
        raise BadRequestError(
            f"'{name}' may have at most {config.max_stop_strings} strings, not {len(given)}.",
            param=name,
            code="array_above_max_length",
        )
    for one in given:
        if not isinstance(one, str):
            raise BadRequestError(
                f"'{name}' must be a string or a list of strings, not {show(value)}.", param=name, code="invalid_type"
            )
        if not one:
            raise BadRequestError(f"'{name}' must not have an empty string.", param=name, code="invalid_value")
        if len(one.encode()) > config.max_stop_bytes:
            raise BadRequestError(
                f"A string of '{name}' may have at most {config.max_stop_bytes} bytes, not {len(one.encode())}.",
                param=name,
                code="string_above_max_length",
            )
    return tuple(dict.fromkeys(given))


def parse_stop_token_ids(value: Any, info: ValidationInfo) -> tuple[int, ...]:
    """A list of token ids, or null. Whether they are in the vocabulary is checked against the model later."""
    most = limits(info).max_stop_token_ids
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRequestError(
            f"'stop_token_ids' must be a list of integers, not {show(value)}.", param="stop_token_ids", code="invalid_type"
        )
    given = value
    if len(given) > most:
        raise BadRequestError(
            f"'stop_token_ids' may have at most {most} ids, not {len(given)}.",
            param="stop_token_ids",
            code="array_above_max_length",
        )
    if not all(is_int(one) for one in given):
        raise BadRequestError(
            f"'stop_token_ids' must be a list of integers, not {show(value)}.", param="stop_token_ids", code="invalid_type"
        )
    return tuple(dict.fromkeys(given))


def parse_logit_bias(value: Any, info: ValidationInfo) -> dict[int, float]:
    """An object from token ids (as strings) to numbers from -100 to 100, or null."""
    most = limits(info).max_logit_bias
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequestError(
            "'logit_bias' must be an object from token ids to numbers from -100 to 100.", param="logit_bias", code="invalid_type"
        )
    given = cast("dict[str, Any]", value)
    if len(given) > most:
        raise BadRequestError(
            f"'logit_bias' may have at most {most} entries, not {len(given)}.",
            param="logit_bias",
            code="object_above_max_properties",
        )
    bias: dict[int, float] = {}
    for key, number in given.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise BadRequestError(
                f"'logit_bias' has the key {show(key)}; keys must be token ids.", param="logit_bias", code="invalid_value"
            )
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not -100 <= number <= 100:
            raise BadRequestError(
                f"'logit_bias' has {show(number)} for token {key}; it must be a number from -100 to 100.",
                param="logit_bias",
                code="invalid_value",
            )
        bias[int(key)] = float(number)
    return bias


def parse_cache_salt(value: Any, info: ValidationInfo) -> str:
    """A short string, or null."""
    most = limits(info).max_cache_salt_chars
    if value is None:
        return ""
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise BadRequestError(
            f"'cache_salt' must be a string of 1 to {most} characters.", param="cache_salt", code="invalid_value"
        )
    return value


def parse_priority(value: Any) -> Priority | None:
    """A class by name, or vLLM's number (lower is earlier): below 0 interactive, 0 standard, above 0 background."""
    if value is None:
        return None
    if is_int(value):
        return "standard" if value == 0 else "interactive" if value < 0 else "background"
    if value in _PRIORITIES:
        named: Priority = value
        return named
    raise BadRequestError(
        f"'priority' must be an integer or one of {', '.join(map(repr, _PRIORITIES))}, not {show(value)}.",
        param="priority",
        code="invalid_value",
    )


def tier_priority(tier: str | None) -> Priority:
    """OpenAI's service tiers as classes within a tenant."""
    return _TIERS.get(tier or "auto", "standard")
