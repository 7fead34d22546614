"""Fields that clients know from OpenAI, vLLM or SGLang and that this server can't honour.

Each has values that ask for nothing special; any other value is a 400, so that nobody believes in an option that does nothing.
What isn't listed here and isn't in the schemas is ignored, as OpenAI does. `prediction` is ignored on purpose: it can't change
what a right answer is.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from radixserve.http.errors import BadRequestError
from radixserve.http.fields import show
from radixserve.http.tools import as_object

Api: TypeAlias = Literal["chat", "completions", "responses", "messages"]

_FALSE = (None, False)
_EMPTY: tuple[Any, ...] = (None, [], {}, "")
_EFFORT = "how much the model reasons can't be set"
_VERBOSITY = "the model knows no verbosity"

_COMMON: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_beam_search": (_FALSE, "beam search is not supported"),
    "length_penalty": ((None, 1, 1.0), "it belongs to beam search, which is not supported"),
    "early_stopping": (_FALSE, "it belongs to beam search, which is not supported"),
    "prompt_logprobs": ((None,), "use /v1/completions with 'echo' and 'logprobs' for the log-probabilities of a prompt"),
    "truncate_prompt_tokens": ((None,), "prompts are never cut"),
    "bad_words": (_EMPTY, "use 'logit_bias'"),
    "allowed_token_ids": ((None,), "use 'logit_bias' or a structured output"),
    "logits_processors": (_EMPTY, "user code does not run in the server"),
    "custom_logit_processor": (_EMPTY, "user code does not run in the server"),
    "spaces_between_special_tokens": ((None, True), "text is always joined as the tokenizer decodes it"),
    "return_token_ids": (_FALSE, "token ids are not part of this answer"),
    "return_tokens_as_token_ids": (_FALSE, "token ids are not part of this answer"),
    "return_hidden_states": (_FALSE, "hidden states are not part of this answer"),
    "lora_path": ((None,), "adapters are not supported"),
    "prompt_embeds": ((None,), "send text or token ids"),
    "kv_transfer_params": ((None,), "this server does not move KV between machines"),
}

#: What chat says otherwise, or alone.
_CHATS_OWN: dict[str, tuple[tuple[Any, ...], str]] = {
    "modalities": ((None, ["text"]), "the model writes text only"),
    "audio": ((None,), "the model writes text only"),
    "web_search_options": ((None,), "there is no web search"),
    "functions": (_EMPTY, "it belongs to /v1/chat/completions"),
    "function_call": ((None, "none", "auto"), "it belongs to /v1/chat/completions"),
}

_CHAT: dict[str, tuple[tuple[Any, ...], str]] = {
    "modalities": ((None, ["text"]), "the model writes text only"),
    "audio": ((None,), "the model writes text only"),
    "web_search_options": ((None,), "there is no web search"),
    "reasoning_effort": ((None, "none"), _EFFORT),
    "verbosity": ((None, "medium"), _VERBOSITY),
    "echo": (_FALSE, "it belongs to /v1/completions"),
    "best_of": ((None,), "it belongs to /v1/completions"),
    "add_generation_prompt": ((None, True), "an assistant turn is always opened"),
    "add_special_tokens": (_FALSE, "the chat template places them"),
    "chat_template": ((None,), "the model's own template is used"),
    "chat_template_kwargs": (_EMPTY, "the model's template takes no arguments"),
    "documents": (_EMPTY, "put them into messages"),
    "mm_processor_kwargs": (_EMPTY, "the model reads text only"),
}

_COMPLETION: dict[str, tuple[tuple[Any, ...], str]] = {
    **_CHATS_OWN,
    "messages": (_EMPTY, "it belongs to /v1/chat/completions; send 'prompt'"),
    "tools": (_EMPTY, "it belongs to /v1/chat/completions"),
    "tool_choice": ((None, "none", "auto"), "it belongs to /v1/chat/completions"),
    "max_completion_tokens": ((None,), "use 'max_tokens'"),
    "top_logprobs": ((None,), "use 'logprobs', the number of alternatives"),
    "reasoning_effort": ((None, "none"), _EFFORT),
    "verbosity": ((None, "medium"), _VERBOSITY),
    "suffix": ((None, ""), "the model can't fill in the middle"),
    "add_special_tokens": ((None, True), "send token ids to have full control of them"),
}


_RESPONSES: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((None, 1), "a response has one answer"),
    **_CHATS_OWN,
    "messages": (_EMPTY, "use 'input'"),
    "max_tokens": ((None,), "use 'max_output_tokens'"),
    "max_completion_tokens": ((None,), "use 'max_output_tokens'"),
    "logprobs": (_FALSE, "use 'top_logprobs'"),
    "reasoning_effort": ((None, "none"), _EFFORT),
    "verbosity": ((None, "medium"), _VERBOSITY),
    "response_format": ((None,), "use 'text.format'"),
    "background": (_FALSE, "a response is answered at once; stream it instead"),
    "conversation": ((None,), "use 'previous_response_id'"),
    "prompt": ((None,), "there are no stored prompts; send 'instructions' and 'input'"),
    "truncation": ((None, "disabled"), "nothing is ever cut"),
    "context_management": (_EMPTY, "nothing is ever cut"),
    "moderation": ((None,), "there is no moderation"),
}
_MESSAGES: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((None, 1), "a message has one answer"),
    **_CHATS_OWN,
    "max_completion_tokens": ((None,), "use 'max_tokens'"),
    "logprobs": (_FALSE, "log-probabilities are not part of this answer"),
    "top_logprobs": ((None,), "log-probabilities are not part of this answer"),
    "reasoning_effort": ((None, "none"), _EFFORT),
    "verbosity": ((None, "medium"), _VERBOSITY),
    "stop": (_EMPTY, "use 'stop_sequences'"),
    "response_format": ((None,), "use 'output_config.format'"),
    "container": ((None,), "there are no containers"),
    "mcp_servers": (_EMPTY, "this server calls no other"),
    "context_management": (_EMPTY, "nothing is ever cut"),
}
#: Fields within objects: the object, the field, and the same as above.
_INNER: dict[str, tuple[tuple[str, str, tuple[Any, ...], str], ...]] = {
    "chat": (),
    "completions": (),
    "responses": (
        ("reasoning", "effort", (None, "none"), _EFFORT),
        ("reasoning", "summary", (None, "auto"), "reasoning is given in full"),
        ("reasoning", "generate_summary", (None, "auto"), "reasoning is given in full"),
        ("text", "verbosity", (None, "medium"), _VERBOSITY),
    ),
    "messages": (("output_config", "effort", (None,), _EFFORT),),
}

_TABLES = {"chat": _CHAT, "completions": _COMPLETION, "responses": _RESPONSES, "messages": _MESSAGES}


def refuse_unsupported(body: dict[str, Any], *, api: Api) -> None:
    """Raise `BadRequestError` for the first field that asks for what this server can't do."""
    for table in (_COMMON, _TABLES[api]):
        for name, (harmless, why) in table.items():
            _refuse(name, body.get(name), harmless, why)
    for outer, name, harmless, why in _INNER[api]:
        holder = body.get(outer)
        if holder is not None:
            _refuse(f"{outer}.{name}", as_object(holder, outer).get(name), harmless, why)


def _refuse(name: str, value: Any, harmless: tuple[Any, ...], why: str) -> None:
    if not any(type(value) is type(one) and value == one for one in harmless):
        raise BadRequestError(
            f"'{name}' is not supported by this server: {why} (it was {show(value)}).", param=name, code="unsupported_parameter"
        )
