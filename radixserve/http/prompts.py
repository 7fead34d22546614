"""The `prompt` of a completions request: text, token ids, or a list of either. No prompt may be empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.http.errors import BadRequestError
from radixserve.http.fields import is_int, show
from radixserve.http.program import Segment

if TYPE_CHECKING:
    from radixserve.http.config import HttpConfig


def parse_prompts(value: Any, vocab_size: int, config: HttpConfig) -> list[Segment]:
    """One raw segment for each prompt; raises `BadRequestError`."""
    if isinstance(value, str):
        return [_text(value, "prompt")]
    if not isinstance(value, list):
        raise BadRequestError(
            f"'prompt' must be a string, a list of strings, a list of token ids, or a list of lists of token ids, not {show(value)}.",
            param="prompt",
            code="invalid_type",
        )
    items = value
    if not items:
        raise _empty("prompt")
    if is_int(items[0]):
        return [parse_token_ids(items, "prompt", vocab_size)]
    if len(items) > config.max_prompts:
        raise BadRequestError(
            f"'prompt' may have at most {config.max_prompts} prompts, not {len(items)}.",
            param="prompt",
            code="array_above_max_length",
        )
    return [_one(item, f"prompt[{i}]", vocab_size, type(items[0])) for i, item in enumerate(items)]


def _one(value: Any, path: str, vocab_size: int, kind: type[Any]) -> Segment:
    if type(value) is not kind or kind not in (str, list):
        raise BadRequestError(
            f"'{path}' must be a string or a list of token ids, like its neighbours, not {show(value)}.",
            param=path,
            code="invalid_type",
        )
    return _text(value, path) if isinstance(value, str) else parse_token_ids(value, path, vocab_size)


def _text(value: str, path: str) -> Segment:
    if not value:
        raise _empty(path)
    return Segment(text=value)


def parse_token_ids(value: list[Any], path: str, vocab_size: int) -> Segment:
    """A raw segment of the ids in `value`, which the request calls `path`; raises `BadRequestError`."""
    if not value:
        raise _empty(path)
    for i, one in enumerate(value):
        if not is_int(one) or not 0 <= one < vocab_size:
            raise BadRequestError(
                f"'{path}[{i}]' must be a token id from 0 to {vocab_size - 1}, not {show(one)}.",
                param=f"{path}[{i}]",
                code="invalid_value",
            )
    return Segment(ids=tuple(value))


def _empty(path: str) -> BadRequestError:
    return BadRequestError(f"'{path}' must not be empty: there is nothing to go on from.", param=path, code="empty_prompt")
