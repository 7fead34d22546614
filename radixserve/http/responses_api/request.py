"""Body of POST /v1/responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, WithJsonSchema

from radixserve.http import body_schemas
from radixserve.http.body_schemas import OBJECT, STRING, nullable, one_of, typed
from radixserve.http.chat_tools import choose
from radixserve.http.constraints import Asked, find_constraint, schema_constraint
from radixserve.http.errors import BadRequestError
from radixserve.http.fields import show
from radixserve.http.schemas import SamplingRequest
from radixserve.http.tools import as_list, as_object, check_tools, tool_spec
from radixserve_tokenizer.protocol import Constraint

if TYPE_CHECKING:
    from radixserve.http.config import HttpConfig
    from radixserve.http.tools import AskedTools

_INT32 = 2**31 - 1
_LOGPROBS = "message.output_text.logprobs"
#: The others are parts of what is not here, so that there is nothing to include; reasoning comes as it is.
_INCLUDES = (
    _LOGPROBS,
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)

_PARTS: dict[str, Any] = {
    "type": "array",
    "items": one_of(
        typed("input_text", {"text": STRING}), typed("output_text", {"text": STRING}), typed("text", {"text": STRING})
    ),
}
_ITEM = one_of(
    {
        "type": "object",
        "required": ["role"],
        "properties": {
            "type": {"const": "message"},
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": one_of(STRING, _PARTS, {"type": "null"}),
        },
    },
    typed("function_call", {"call_id": STRING, "name": STRING}, arguments=STRING),
    typed("function_call_output", {"call_id": STRING}, output=one_of(STRING, _PARTS)),
    typed("reasoning", {}, summary={"type": "array", "items": OBJECT}, content=nullable({"type": "array", "items": OBJECT})),
)
_TOOL = {**body_schemas.FUNCTION, "properties": {**body_schemas.FUNCTION["properties"], "type": {"const": "function"}}}
_CHOICE = nullable(
    one_of(
        {"enum": ["auto", "none", "required"]},
        typed("function", {"name": STRING}),
        typed("allowed_tools", {"tools": {"type": "array", "minItems": 1, "items": OBJECT}}, mode={"enum": ["auto", "required"]}),
    )
)


class ResponsesRequest(SamplingRequest):
    """Body of POST /v1/responses. Sampling arguments beside OpenAI's are those of chat."""

    input: Annotated[Any, WithJsonSchema(one_of(STRING, {"type": "array", "minItems": 1, "items": _ITEM}))]
    instructions: str | None = Field(None, description="A system message before everything; not kept for the next response.")
    max_output_tokens: int | None = Field(None, ge=1, le=_INT32, description="Missing: what is left of the context.")
    previous_response_id: str | None = Field(None, description="Go on from that response.")
    store: bool | None = Field(None, description="Default true: the response can be gone on from, and read again.")
    text: Annotated[Any, WithJsonSchema(nullable(OBJECT))] = Field(
        None, description="`format`: text, json_object or json_schema."
    )
    tools: Annotated[Any, WithJsonSchema(nullable({"type": "array", "items": _TOOL}))] = None
    tool_choice: Annotated[Any, WithJsonSchema(_CHOICE)] = None
    parallel_tool_calls: bool | None = Field(None, description="Default true: an answer may have several calls.")
    include: Annotated[Any, WithJsonSchema(nullable({"type": "array", "items": STRING}))] = Field(
        None, description="`message.output_text.logprobs` adds log-probabilities; the others belong to tools that are not here."
    )
    top_logprobs: int | None = Field(None, ge=0, le=20)
    metadata: Annotated[Any, WithJsonSchema(nullable(OBJECT))] = None

    def effective_max_tokens(self) -> int | None:
        """Responses' own name for it."""
        return self.max_output_tokens

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer has log-probabilities."""
        included = as_list(self.include, "include", 64)
        for i, one in enumerate(included):
            if one not in _INCLUDES:
                raise BadRequestError(
                    f"'include[{i}]' must be one of {', '.join(map(repr, _INCLUDES))}, not {show(one)}.",
                    param=f"include[{i}]",
                    code="invalid_value",
                )
        return self.top_logprobs is not None or _LOGPROBS in included

    def checked_metadata(self) -> dict[str, str]:
        """What the client wants back; raises `BadRequestError`."""
        pairs = {} if self.metadata is None else as_object(self.metadata, "metadata")
        for key, value in pairs.items():
            if len(pairs) > 16 or len(key) > 64 or not isinstance(value, str) or len(value) > 512:
                raise BadRequestError(
                    "'metadata' may have at most 16 pairs, keys of at most 64 characters and as values strings of at most 512.",
                    param="metadata",
                    code="invalid_value",
                )
        return pairs

    def asked_tools(self, config: HttpConfig) -> AskedTools:
        """What the model may call; raises `BadRequestError`."""
        specs = check_tools(
            (
                tool_spec(_function(one, f"tools[{i}]"), f"tools[{i}]", config)
                for i, one in enumerate(as_list(self.tools, "tools", config.max_tools))
            ),
            "tools",
            config,
        )
        return choose(specs, self.tool_choice, parallel=self.parallel_tool_calls is not False)

    def asked_format(self, body: dict[str, Any]) -> Asked:
        """What the text must match: `text.format`, or vLLM's fields."""
        asked = find_constraint(body)
        form = as_object(self.text, "text").get("format") if self.text is not None else None
        own = Asked("text.format", None) if form is None else _format(as_object(form, "text.format"))
        if own.constraint is not None and asked.constraint is not None:
            raise BadRequestError(
                f"'text.format' and '{asked.field}' both constrain the output; send one.", param=asked.field, code="invalid_value"
            )
        return own if own.constraint is not None else asked


def _function(value: Any, path: str) -> dict[str, Any]:
    tool = as_object(value, path)
    if tool.get("type") != "function":
        raise BadRequestError(
            f"'{path}' is of type {show(tool.get('type'))}; this server knows tools of type 'function' alone.",
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    return tool


def _format(form: dict[str, Any]) -> Asked:
    match form.get("type"):
        case "text":
            return Asked("text.format", None)
        case "json_object":
            return Asked("text.format", Constraint(kind="json_object"))
        case "json_schema":
            path = "text.format.schema"
            return Asked(path, schema_constraint(form.get("schema"), path))
        case other:
            raise BadRequestError(
                f"'text.format.type' must be 'text', 'json_object' or 'json_schema', not {show(other)}.",
                param="text.format.type",
                code="invalid_value",
            )
