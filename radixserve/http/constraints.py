"""What the output must match: `response_format`, and vLLM's `structured_outputs` and older `guided_*` fields.

Every form becomes one `Constraint` of the wire; whether a schema can be enforced is decided by the tokenizer process.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import orjson

from radixserve.http.body import json_depth
from radixserve.http.errors import BadRequestError
from radixserve.http.fields import show
from radixserve_tokenizer.protocol import Constraint

if TYPE_CHECKING:
    from radixserve.http.config import HttpConfig

_FORMS = ("json", "json_object", "regex", "choice", "grammar")
_OLDER = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_UNSUPPORTED = ("structural_tag", "guided_decoding_backend", "guided_whitespace_pattern", "whitespace_pattern")


def find_constraint(body: dict[str, Any], config: HttpConfig) -> Constraint | None:
    """The one constraint that a request asks for; raises `BadRequestError` when it asks for several or for none that exists."""
    found: list[tuple[str, Constraint]] = []
    if body.get("response_format") is not None:
        constraint = _response_format(body["response_format"], config)
        if constraint is not None:
            found.append(("response_format", constraint))
    found += _structured(body, config)
    if len(found) > 1:
        names = " and ".join(repr(name) for name, _ in found)
        raise BadRequestError(f"{names} both constrain the output; send one.", param=found[1][0], code="invalid_value")
    return found[0][1] if found else None


def _response_format(value: Any, config: HttpConfig) -> Constraint | None:
    if not isinstance(value, dict):
        raise BadRequestError(
            f"'response_format' must be an object, not {show(value)}.", param="response_format", code="invalid_type"
        )
    form = cast("dict[str, Any]", value)
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return Constraint(kind="json_object")
        case "json_schema":
            described = form.get("json_schema")
            if not isinstance(described, dict):
                raise BadRequestError(
                    "'response_format.json_schema' must be an object with 'name' and 'schema'.",
                    param="response_format.json_schema",
                    code="invalid_type",
                )
            # `strict` false asks for less than what is enforced anyway.
            return _schema(cast("dict[str, Any]", described).get("schema"), "response_format.json_schema.schema", config)
        case other:
            raise BadRequestError(
                f"'response_format.type' must be 'text', 'json_object' or 'json_schema', not {show(other)}.",
                param="response_format.type",
                code="invalid_value",
            )


def _structured(body: dict[str, Any], config: HttpConfig) -> list[tuple[str, Constraint]]:
    forms: list[tuple[str, str, Any]] = []
    structured = body.get("structured_outputs")
    if structured is not None:
        if not isinstance(structured, dict):
            raise BadRequestError("'structured_outputs' must be an object.", param="structured_outputs", code="invalid_type")
        for name, value in cast("dict[str, Any]", structured).items():
            if value is None or value is False:
                continue
            path = f"structured_outputs.{name[:60]}"
            if name not in _FORMS:
                raise BadRequestError(
                    f"'{path}' is not supported; use one of {', '.join(_FORMS)}.", param=path, code="unsupported_parameter"
                )
            forms.append((path, name, value))
    for name in _UNSUPPORTED:
        if body.get(name) is not None:
            raise BadRequestError(f"'{name}' is not supported.", param=name, code="unsupported_parameter")
    forms += [
        (older, form, body[older]) for older, form in _OLDER.items() if body.get(older) is not None and body[older] is not False
    ]
    return [(path, _form(form, value, path, config)) for path, form, value in forms]


def _form(form: str, value: Any, path: str, config: HttpConfig) -> Constraint:
    match form:
        case "json":
            return _schema(_parsed(value, path), path, config)
        case "json_object":
            if value is not True:
                raise BadRequestError(f"'{path}' must be true or false.", param=path, code="invalid_type")
            return Constraint(kind="json_object")
        case "choice":
            return _choice(value, path, config)
        case _:
            if not isinstance(value, str) or not value:
                raise BadRequestError(f"'{path}' must be a string that is not empty.", param=path, code="invalid_type")
            _check_size(value, path, config)
            return Constraint(kind="regex" if form == "regex" else "ebnf", source=value)


def _parsed(value: Any, path: str) -> Any:
    """vLLM also takes a schema as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"'{path}' is not valid JSON: {error}.", param=path, code="invalid_json_schema") from error


def _schema(schema: Any, path: str, config: HttpConfig) -> Constraint:
    if not isinstance(schema, dict):
        raise BadRequestError(
            f"'{path}' must be a JSON Schema object, not {show(schema)}.", param=path, code="invalid_json_schema"
        )
    if json_depth(schema, config.max_json_depth) > config.max_json_depth:
        raise BadRequestError(
            f"'{path}' nests deeper than the limit of {config.max_json_depth} levels.", param=path, code="invalid_json_schema"
        )
    source = orjson.dumps(schema).decode()
    _check_size(source, path, config)
    return Constraint(kind="json_schema", source=source)


def _choice(value: Any, path: str, config: HttpConfig) -> Constraint:
    choices = value if isinstance(value, list) else []
    if not choices or not all(isinstance(one, str) and one for one in choices):
        raise BadRequestError(f"'{path}' must be a list of strings that are not empty.", param=path, code="invalid_type")
    source = "|".join(_escape(one) for one in choices)
    _check_size(source, path, config)
    return Constraint(kind="regex", source=f"({source})")


def _escape(text: str) -> str:
    """Like `re.escape`, without the escapes that only Python knows (a space or a line break stands for itself)."""
    return re.sub(r"[\\.^$|?*+()\[\]{}]", lambda found: "\\" + found.group(), text)


def _check_size(source: str, path: str, config: HttpConfig) -> None:
    size = len(source.encode())
    if size > config.max_schema_bytes:
        raise BadRequestError(
            f"'{path}' has {size} bytes; the limit is {config.max_schema_bytes}.", param=path, code="string_above_max_length"
        )
