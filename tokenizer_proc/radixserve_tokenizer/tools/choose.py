"""Which format a model has: by its control tokens and the text of its template, unless the settings say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer.tools.jsonformats import Hermes, SmolLM2
from radixserve_tokenizer.tools.llama3 import Llama3
from radixserve_tokenizer.tools.mistral import MistralArguments, MistralList
from radixserve_tokenizer.tools.qwen3coder import Qwen3Coder

if TYPE_CHECKING:
    from radixserve_tokenizer.text.tokenizer import TextTokenizer
    from radixserve_tokenizer.tools.format import ToolFormat

FORMATS: dict[str, type[ToolFormat]] = {
    each.name: each for each in (Hermes, SmolLM2, Qwen3Coder, Llama3, MistralList, MistralArguments)
}


def choose_format(tokenizer: TextTokenizer, name: str = "auto") -> ToolFormat:
    """The model's format, or the one with this name. Raises `ValueError` for a name that there isn't."""
    if name in ("", "auto"):
        return _guess(tokenizer)(tokenizer.special)
    if name not in FORMATS:
        raise ValueError(f"tool_format must be auto or one of {', '.join(FORMATS)}, not {name!r}")
    return FORMATS[name](tokenizer.special)


def _guess(tokenizer: TextTokenizer) -> type[ToolFormat]:
    """What the template says comes first: fine-tunes keep the control tokens of the model that they were made from."""
    template = tokenizer.chat_template or ""
    for marks, found in _IN_TEMPLATES:
        if all(mark in template for mark in marks):
            return found
    for mark, found in _AMONG_TOKENS:
        if mark in tokenizer.special:
            return found
    return Hermes


_IN_TEMPLATES: list[tuple[tuple[str, ...], type[ToolFormat]]] = [
    (("<function=", "<parameter="), Qwen3Coder),
    (("<tool_call>",), Hermes),
    (("[TOOL_CALLS]", "[ARGS]"), MistralArguments),
    (("[TOOL_CALLS]",), MistralList),
    (("SmolLM",), SmolLM2),
]
_AMONG_TOKENS: list[tuple[str, type[ToolFormat]]] = [
    ("[ARGS]", MistralArguments),
    ("[TOOL_CALLS]", MistralList),
    ("<|python_tag|>", Llama3),
]
