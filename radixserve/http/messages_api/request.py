"""Body of POST /v1/messages, and of its count of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BeforeValidator, Field, WithJsonSchema

from radixserve.http import body_schemas, fields
from radixserve.http.body_schemas import OBJECT, STRING, nullable, one_of, typed
from radixserve.http.constraints import Asked, find_constraint, schema_constraint
from radixserve.http.errors import BadRequestError
from radixserve.http.fields import show
from radixserve.http.schemas import SamplingRequest
from radixserve.http.tools import NO_TOOLS, AskedTools, as_list, as_object, as_string, asked_tools, check_tools, tool_spec

if TYPE_CHECKING:
    from radixserve.http.config import HttpConfig
    from radixserve_tokenizer.protocol import ToolSpec

_INT32 = 2**31 - 1

_TEXT = typed("text", {"text": STRING})
_TEXTS = one_of(STRING, {"type": "array", "items": _TEXT})
_BLOCKS: dict[str, Any] = {
    "type": "array",
    "items": one_of(
        _TEXT,
        typed("tool_use", {"id": STRING, "name": STRING}, input=nullable(OBJECT)),
        typed("tool_result", {"tool_use_id": STRING}, content=nullable(_TEXTS)),
        typed("thinking", {"thinking": STRING}),
        typed("redacted_thinking", {}),
    ),
}
_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": one_of(STRING, _BLOCKS)},
}
_TOOL: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": body_schemas.FUNCTION["properties"]["name"],
        "description": nullable(STRING),
        "input_schema": nullable(OBJECT),
        "strict": nullable({"type": "boolean"}),
        "type": nullable({"const": "custom"}),
    },
}
_ONE_CALL = {"disable_parallel_tool_use": nullable({"type": "boolean"})}
_CHOICE = one_of(
    typed("auto", {}, **_ONE_CALL), typed("any", {}, **_ONE_CALL), typed("tool", {"name": STRING}, **_ONE_CALL), typed("none", {})
)


class MessagesRequest(SamplingRequest):
    """Body of POST /v1/messages. Sampling arguments beside Anthropic's are those of chat."""

    messages: Annotated[Any, WithJsonSchema({"type": "array", "minItems": 1, "items": _MESSAGE})]
    max_tokens: int | None = Field(None, ge=1, le=_INT32, json_schema_extra={"description": "Required, but for a count."})
    system: Annotated[Any, WithJsonSchema(nullable(_TEXTS))] = None
    temperature: float | None = Field(None, ge=0, le=1, allow_inf_nan=False, description="Default 1; 0 is greedy.")
    stop_sequences: Annotated[tuple[str, ...], BeforeValidator(fields.parse_stop), WithJsonSchema(body_schemas.STOP)] = ()
    tools: Annotated[Any, WithJsonSchema(nullable({"type": "array", "items": _TOOL}))] = None
    tool_choice: Annotated[Any, WithJsonSchema(nullable(_CHOICE))] = None
    thinking: Annotated[Any, WithJsonSchema(nullable(OBJECT))] = Field(
        None, description="disabled or adaptive: the model thinks as it was trained to."
    )
    output_config: Annotated[Any, WithJsonSchema(nullable(OBJECT))] = Field(
        None, description="`format`: a JSON Schema that the text must match."
    )

    def asked_tools(self, config: HttpConfig) -> AskedTools:
        """What the model may call; raises `BadRequestError`."""
        specs = check_tools(
            (_tool(one, f"tools[{i}]", config) for i, one in enumerate(as_list(self.tools, "tools", config.max_tools))),
            "tools",
            config,
        )
        choice = {} if self.tool_choice is None else as_object(self.tool_choice, "tool_choice")
        parallel = choice.get("disable_parallel_tool_use") is not True
        match choice.get("type", "auto"):
            case "auto":
                return asked_tools(specs, "auto", parallel=parallel)
            case "any":
                return asked_tools(specs, "required", parallel=parallel)
            case "tool":
                name = as_string(choice.get("name"), "tool_choice.name")
                return asked_tools(specs, "required", names=(name,), parallel=False)
            case "none":
                return asked_tools(specs, "none") if specs else NO_TOOLS
            case other:
                raise BadRequestError(
                    f"'tool_choice.type' must be 'auto', 'any', 'tool' or 'none', not {show(other)}.",
                    param="tool_choice.type",
                    code="invalid_value",
                )

    def asked_format(self, body: dict[str, Any]) -> Asked:
        """What the text must match: `output_config.format`, its older form `output_format`, or vLLM's fields."""
        found = [find_constraint(body)]
        config = {} if self.output_config is None else as_object(self.output_config, "output_config")
        for path, form in (("output_config.format", config.get("format")), ("output_format", body.get("output_format"))):
            if form is not None:
                found.append(_format(as_object(form, path), path))
        found = [asked for asked in found if asked.constraint is not None]
        if len(found) > 1:
            raise BadRequestError(
                f"'{found[0].field}' and '{found[1].field}' both constrain the output; send one.",
                param=found[1].field,
                code="invalid_value",
            )
        return found[0] if found else Asked("", None)


def without_tier(body: dict[str, Any]) -> dict[str, Any]:
    """The body without Anthropic's service tiers, which choose between what was bought there; they have a name in common."""
    tier = body.get("service_tier")
    if tier in (None, "auto", "standard_only"):
        return {name: value for name, value in body.items() if name != "service_tier"}
    raise BadRequestError(
        f"'service_tier' must be one of 'auto', 'standard_only', not {show(tier)}.", param="service_tier", code="invalid_value"
    )


def check_thinking(value: Any) -> None:
    """Raise `BadRequestError` where more is asked for than that the model thinks as it does."""
    if value is None:
        return
    kind = as_object(value, "thinking").get("type")
    if kind not in ("disabled", "adaptive"):
        raise BadRequestError(
            f"'thinking' of type {show(kind)} is not supported: how much the model thinks can't be set.",
            param="thinking.type",
            code="unsupported_parameter",
        )


def _tool(value: Any, path: str, config: HttpConfig) -> ToolSpec:
    tool = as_object(value, path)
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise BadRequestError(
            f"'{path}' is of type {show(kind)}; this server knows tools of type 'custom' alone.",
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    return tool_spec(tool, path, config, schema="input_schema")


def _format(form: dict[str, Any], path: str) -> Asked:
    if form.get("type") != "json_schema":
        raise BadRequestError(
            f"'{path}.type' must be 'json_schema', not {show(form.get('type'))}.", param=f"{path}.type", code="invalid_value"
        )
    schema = cast("Any", form.get("schema"))
    return Asked(f"{path}.schema", schema_constraint(schema, f"{path}.schema"))
