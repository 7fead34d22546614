"""Why an op failed, in the words that its client will read."""

from __future__ import annotations

from radixserve_tokenizer import protocol as wire


class OpError(Exception):
    """An op can't be carried out. `code`, `status` (an HTTP status) and `param` travel in `Failed`."""

    def __init__(
        self, message: str, *, code: str = "invalid_value", status: int = 400, param: str = "", retryable: bool = False
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.param = param
        self.retryable = retryable


class ContextLengthError(OpError):
    """Prompt and output do not fit the context. Clients match on how the message starts."""

    def __init__(self, max_context: int, prompt_tokens: int, more: str) -> None:
        super().__init__(
            f"This model's maximum context length is {max_context} tokens. However, the prompt has {prompt_tokens} tokens"
            f"{more}. Shorten the prompt or lower max_tokens.",
            code="context_length_exceeded",
            param="max_tokens" if more else "messages",
        )


class TextTooLongError(OpError):
    """Text that can't fit whatever its tokens are; it is refused before it costs the time to encode it."""

    def __init__(self, max_context: int, least_tokens: int) -> None:
        super().__init__(
            f"This model's maximum context length is {max_context} tokens. However, the prompt has at least {least_tokens} tokens."
            " Shorten the prompt.",
            code="context_length_exceeded",
            param="messages",
        )


class EmptyPromptError(OpError):
    """There is no token to go on from."""

    def __init__(self) -> None:
        super().__init__(
            "the prompt is empty: append at least one token of text or a message first", code="empty_prompt", param="prompt"
        )


def invalid_key() -> OpError:
    """No tenant has this key. The key itself is never repeated."""
    return OpError("no tenant has this API key: give the key of one", code="invalid_api_key", status=401, param="api_key")


def internal_error(message: wire.FromClient, error: Exception) -> wire.Event:
    """The answer to a message that tripped over a bug of ours."""
    text = f"internal error ({type(error).__name__}); the server's log has more"
    if isinstance(message, wire.Query):
        return wire.Reply(id=message.id, error=text, status=500)
    return wire.Failed(
        program=getattr(message, "program", -1),
        op=getattr(message, "op", -1),
        var=getattr(message, "var", -1),
        code="internal",
        message=text,
    )
