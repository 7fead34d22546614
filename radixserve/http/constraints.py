"""What the output must match: `response_format`, and vLLM's `structured_outputs` and older `guided_*` fields.

Every form becomes one `Constraint` of the wire; whether it can be enforced, and how large it may be, is decided by the
tokenizer process.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import orjson

from radixserve.http.errors import BadRequestError
from radixserve.http.fields import show
from radixserve_tokenizer.protocol import Constraint

_FORMS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
_OLDER = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}
_CLOSED = "disable_additional_properties"
_UNSUPPORTED = ("guided_decoding_backend", "guided_whitespace_pattern", "whitespace_pattern")


class Asked(NamedTuple):
    """A constraint, and the field of the request that asks for it: what the engine says of it is said of that field."""

    field: str
    constraint: Constraint | None


def find_constraint(body: dict[str, Any]) -> Asked:
    """The one constraint that a request asks for; raises `BadRequestError` when it asks for several or for none that exists."""
    found = _structured(body)
    if body.get("response_format") is not None:
        asked = _response_format(body["response_format"])
        if asked.constraint is not None:
            found.insert(0, asked)
    if len(found) > 1:
        names = " and ".join(repr(asked.field) for asked in found)
        raise BadRequestError(f"{names} both constrain the output; send one.", param=found[1].field, code="invalid_value")
    return found[0] if found else Asked("", None)


def _response_format(value: Any) -> Asked:
    if not isinstance(value, dict):
        raise BadRequestError(
            f"'response_format' must be an object, not {show(value)}.", param="response_format", code="invalid_type"
        )
    form = cast("dict[str, Any]", value)
    match form.get("type"):
        case "text":
            return Asked("response_format", None)
        case "json_object":
            return Asked("response_format", Constraint(kind="json_object"))
        case "json_schema":
            described = form.get("json_schema")
            if not isinstance(described, dict):
                raise BadRequestError(
                    "'response_format.json_schema' must be an object with 'name' and 'schema'.",
                    param="response_format.json_schema",
                    code="invalid_type",
                )
            # `strict` false asks for less than what is enforced anyway.
            path = "response_format.json_schema.schema"
            return Asked(path, schema_constraint(cast("dict[str, Any]", described).get("schema"), path))
        case "structural_tag":
            return Asked("response_format", _structural_tag(form, "response_format"))
        case other:
            raise BadRequestError(
                f"'response_format.type' must be 'text', 'json_object', 'json_schema' or 'structural_tag', not {show(other)}.",
                param="response_format.type",
                code="invalid_value",
            )


def _structured(body: dict[str, Any]) -> list[Asked]:
    forms: list[tuple[str, str, Any]] = []
    structured = body.get("structured_outputs")
    if structured is not None:
        if not isinstance(structured, dict):
            raise BadRequestError("'structured_outputs' must be an object.", param="structured_outputs", code="invalid_type")
        for name, value in cast("dict[str, Any]", structured).items():
            if value is None or value is False or name == _CLOSED:
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
    is_open = _is_open(structured)
    return [Asked(path, _form(form, value, path, is_open=is_open)) for path, form, value in forms]


def _is_open(structured: Any) -> bool:
    """Whether properties that a schema says nothing of may be written; raises `BadRequestError`."""
    closed = structured.get(_CLOSED) if isinstance(structured, dict) else None
    if closed is None or closed is True:
        return False
    path = f"structured_outputs.{_CLOSED}"
    if closed is not False:
        raise BadRequestError(f"'{path}' must be true or false.", param=path, code="invalid_type")
    if cast("dict[str, Any]", structured).get("json") is None:
        raise BadRequestError(f"'{path}' needs a schema in 'structured_outputs.json'.", param=path, code="invalid_value")
    return True


def _form(form: str, value: Any, path: str, *, is_open: bool) -> Constraint:
    match form:
        case "json":
            return schema_constraint(_parsed(value, path), path, is_open=is_open)
        case "json_object":
            if value is not True:
                raise BadRequestError(f"'{path}' must be true or false.", param=path, code="invalid_type")
            return Constraint(kind="json_object")
        case "choice":
            return _choice(value, path)
        case "structural_tag":
            return _structural_tag(_parsed(value, path), path)
        case _:
            if not isinstance(value, str) or not value:
                raise BadRequestError(f"'{path}' must be a string that is not empty.", param=path, code="invalid_type")
            return Constraint(kind="regex" if form == "regex" else "ebnf", source=value)


def _parsed(value: Any, path: str) -> Any:
    """vLLM also takes a schema as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"'{path}' is not valid JSON: {error}.", param=path, code="invalid_json_schema") from error


def schema_constraint(schema: Any, path: str, *, is_open: bool = False) -> Constraint:
    """A JSON Schema as a constraint; `path` is where the request has it."""
    if not isinstance(schema, dict):
        raise BadRequestError(
            f"'{path}' must be a JSON Schema object, not {show(schema)}.", param=path, code="invalid_json_schema"
        )
    try:
        return Constraint(kind="open_json_schema" if is_open else "json_schema", source=orjson.dumps(schema).decode())
    except orjson.JSONEncodeError as error:  # the only thing that can be read and not be written
        raise BadRequestError(f"'{path}' nests too deep.", param=path, code="invalid_json_schema") from error


def _structural_tag(value: Any, path: str) -> Constraint:
    if not isinstance(value, dict):
        raise BadRequestError(f"'{path}' must be an object, not {show(value)}.", param=path, code="invalid_type")
    try:
        return Constraint(kind="structural_tag", source=orjson.dumps(value).decode())
    except orjson.JSONEncodeError as error:
        raise BadRequestError(f"'{path}' nests too deep.", param=path, code="invalid_value") from error


def _choice(value: Any, path: str) -> Constraint:
    choices = value if isinstance(value, list) else []
    if not choices or not all(isinstance(one, str) and one for one in choices):
        raise BadRequestError(f"'{path}' must be a list of strings that are not empty.", param=path, code="invalid_type")
    return Constraint(kind="choice", source=orjson.dumps(choices).decode())
