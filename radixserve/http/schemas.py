"""The two request bodies. Validation is strict: no number as a string, no `true` as a number, nothing out of range.

A null means the default, as OpenAI has it. Fields that are checked by hand elsewhere (messages, prompt, response_format, tools) are
`Any` here, with their JSON Schema for the OpenAPI document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from radixserve.http import body_schemas, fields
from radixserve.http.body_schemas import OBJECT, nullable
from radixserve.http.errors import BadRequestError
from radixserve_tokenizer.protocol import Priority, Sampling

if TYPE_CHECKING:
    from radixserve.http.config import HttpConfig
    from radixserve_tokenizer.protocol import ModelCard

_INT32 = 2**31 - 1


class StreamOptions(BaseModel):
    """What a stream carries beside the text."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None
    """A last chunk with the usage and no choices."""
    continuous_usage_stats: Literal[False] | None = None
    include_obfuscation: Literal[False] | None = None


class SamplingRequest(BaseModel):
    """What both APIs have."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: str | None = Field(None, description="One of the names that /v1/models lists. Missing: the served model.")
    n: Annotated[int | None, AfterValidator(fields.check_n)] = Field(
        None, description="Choices for each prompt.", json_schema_extra={"minimum": 1}
    )
    stream: bool | None = None
    stream_options: Annotated[Any, WithJsonSchema(nullable(StreamOptions.model_json_schema()))] = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1, description="With a seed the same request gets the same answer.")

    max_tokens: int | None = Field(None, ge=0, le=_INT32, description="Missing: what is left of the context.")
    min_tokens: int | None = Field(None, ge=0, le=_INT32)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False, description="Default 1; 0 is greedy.")
    top_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False, description="0 leaves the likeliest token alone.")
    top_k: int | None = Field(None, ge=-1, le=_INT32, description="0 and -1 are off.")
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    repetition_penalty: float | None = Field(None, gt=0, le=10, allow_inf_nan=False)
    presence_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    logit_bias: Annotated[
        dict[int, float],
        BeforeValidator(fields.parse_logit_bias),
        WithJsonSchema(nullable({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}})),
    ] = Field({}, description="Token id to what is added to its logit.", validate_default=True)
    stop: Annotated[tuple[str, ...], BeforeValidator(fields.parse_stop), WithJsonSchema(body_schemas.STOP)] = ()
    stop_token_ids: Annotated[
        tuple[int, ...],
        BeforeValidator(fields.parse_stop_token_ids),
        WithJsonSchema(nullable({"type": "array", "items": {"type": "integer"}})),
    ] = ()
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None

    response_format: Annotated[Any, WithJsonSchema(nullable(OBJECT))] = Field(
        None, description="text, json_object or json_schema."
    )
    structured_outputs: Annotated[Any, WithJsonSchema(nullable(OBJECT))] = Field(
        None, description="vLLM's form: one of json, json_object, regex, choice, grammar."
    )
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    priority: Annotated[
        Priority | None,
        BeforeValidator(fields.parse_priority),
        WithJsonSchema(nullable({"anyOf": [{"type": "integer"}, {"enum": ["interactive", "standard", "background"]}]})),
    ] = Field(None, description="Class within the tenant; it wins over `service_tier`.")
    cache_salt: Annotated[str, BeforeValidator(fields.parse_cache_salt), WithJsonSchema(nullable({"type": "string"}))] = Field(
        "", description="Requests with different salts share no cache."
    )

    radixserve: Annotated[Any, WithJsonSchema(body_schemas.EXTENSION)] = Field(
        None, description="Of which agent program the request is; the same as the headers X-RadixServe-..."
    )

    def options(self) -> StreamOptions:
        """The stream's options; raises when they are sent without `stream`."""
        if self.stream_options is None:
            return StreamOptions()
        if not self.stream:
            raise BadRequestError("'stream_options' needs 'stream': true.", param="stream_options", code="invalid_value")
        try:
            return StreamOptions.model_validate(self.stream_options)
        except ValidationError as error:
            path = ".".join(["stream_options", *map(str, error.errors()[0]["loc"])])
            raise BadRequestError(f"'{path}': {error.errors()[0]['msg']}.", param=path, code="invalid_value") from error

    def effective_priority(self) -> Priority:
        """The class to open the program with."""
        return self.priority or fields.tier_priority(self.service_tier)

    def effective_max_tokens(self) -> int | None:
        """Most tokens to generate; None: what is left of the context."""
        return self.max_tokens

    def sampling(self, card: ModelCard, *, logprobs: int, prompt_logprobs: int = -1) -> Sampling:
        """For the wire; ids are checked against the vocabulary. -1 is off for both kinds of log-probabilities."""
        most = self.effective_max_tokens()
        fewest = _or(self.min_tokens, 0)
        if most is not None and fewest > most:
            raise BadRequestError(
                f"'min_tokens' ({fewest}) is above the most tokens asked for ({most}).", param="min_tokens", code="invalid_value"
            )
        _check_ids(self.stop_token_ids, "stop_token_ids", card)
        _check_ids(self.logit_bias, "logit_bias", card)
        return Sampling(
            max_tokens=most,
            min_tokens=fewest,
            temperature=_or(self.temperature, 1.0),
            top_k=max(0, _or(self.top_k, 0)),
            top_p=_or(self.top_p, 1.0),
            min_p=_or(self.min_p, 0.0),
            repetition_penalty=_or(self.repetition_penalty, 1.0),
            presence_penalty=_or(self.presence_penalty, 0.0),
            frequency_penalty=_or(self.frequency_penalty, 0.0),
            logit_bias=self.logit_bias,
            ignore_eos=bool(self.ignore_eos),
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop=bool(self.include_stop_str_in_output),
            skip_special_tokens=self.skip_special_tokens is not False,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


class ChatRequest(SamplingRequest):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[Any, WithJsonSchema({"type": "array", "minItems": 1, "items": body_schemas.MESSAGE})]
    max_tokens: int | None = Field(None, ge=1, le=_INT32, description="The older name of `max_completion_tokens`.")
    max_completion_tokens: int | None = Field(None, ge=1, le=_INT32, description="Missing: what is left of the context.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    continue_final_message: bool | None = Field(None, description="The answer goes on from the last assistant message.")
    tools: Annotated[Any, WithJsonSchema(body_schemas.TOOLS)] = Field(None, description="Functions that the model may call.")
    tool_choice: Annotated[Any, WithJsonSchema(body_schemas.TOOL_CHOICE)] = Field(
        None, description="auto (the default), none, required, a function, or a list of allowed ones."
    )
    parallel_tool_calls: bool | None = Field(None, description="Default true: an answer may have several calls.")
    functions: Annotated[Any, WithJsonSchema(body_schemas.FUNCTIONS)] = Field(None, description="The older form of `tools`.")
    function_call: Annotated[Any, WithJsonSchema(body_schemas.FUNCTION_CALL)] = Field(
        None, description="The older form of `tool_choice`."
    )

    @property
    def uses_functions(self) -> bool:
        """Whether it is in the older form, and wants its answer so."""
        return bool(self.functions) or self.function_call not in (None, "auto", "none")

    def effective_max_tokens(self) -> int | None:
        """OpenAI's newer name, or the older one."""
        older, newer = self.max_tokens, self.max_completion_tokens
        if older is not None and newer is not None and older != newer:
            raise BadRequestError(
                "'max_tokens' and 'max_completion_tokens' differ; send one.", param="max_tokens", code="invalid_value"
            )
        return newer if newer is not None else older

    def wanted_logprobs(self) -> int:
        """-1 off, else how many alternatives."""
        if not self.logprobs:
            if self.top_logprobs:
                raise BadRequestError("'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value")
            return -1
        return _or(self.top_logprobs, 0)


class CompletionRequest(SamplingRequest):
    """Body of POST /v1/completions."""

    prompt: Annotated[Any, WithJsonSchema(body_schemas.PROMPT)]
    logprobs: int | None = Field(None, ge=0, le=20, description="How many alternatives; 0: the drawn token alone.")
    echo: bool | None = Field(
        None, description="The answer begins with the prompt, with `logprobs` also with its log-probabilities."
    )
    best_of: int | None = Field(None, description="Must equal `n`.")


RequestT = TypeVar("RequestT", bound=BaseModel)


def parse_request(model: type[RequestT], body: dict[str, Any], config: HttpConfig) -> RequestT:
    """A checked request; raises `BadRequestError` naming the parameter and its limit."""
    for name, info in model.model_fields.items():
        if info.is_required() and body.get(name) is None:
            raise BadRequestError(f"'{name}' is required.", param=name, code="missing_required_parameter")
    try:
        return model.model_validate(body, context=config)
    except ValidationError as error:
        raise fields.bad_fields(model, error) from error


def _check_ids(ids: tuple[int, ...] | dict[int, float], name: str, card: ModelCard) -> None:
    for one in ids:
        if not 0 <= one < card.vocab_size:
            raise BadRequestError(
                f"'{name}' has the token id {fields.show(one)}; this model's ids are 0 to {card.vocab_size - 1}.",
                param=name,
                code="invalid_value",
            )


ValueT = TypeVar("ValueT", int, float)


def _or(value: ValueT | None, default: ValueT) -> ValueT:
    return default if value is None else value
