"""Which format a model has: by its control tokens and the text of its template, unless the settings say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer.tools.jsonformats import Hermes, SmolLM2

if TYPE_CHECKING:
    from radixserve_tokenizer.text.tokenizer import TextTokenizer
    from radixserve_tokenizer.tools.format import ToolFormat

FORMATS: dict[str, type[ToolFormat]] = {each.name: each for each in (Hermes, SmolLM2)}


def choose_format(tokenizer: TextTokenizer, name: str = "auto") -> ToolFormat:
    """The model's format, or the one with this name. Raises `ValueError` for a name that there isn't."""
    if name not in ("", "auto"):
        if name not in FORMATS:
            raise ValueError(f"tool_format must be auto or one of {', '.join(FORMATS)}, not {name!r}")
        return FORMATS[name](tokenizer.special)
    return _guess(tokenizer)(tokenizer.special)


def _guess(tokenizer: TextTokenizer) -> type[ToolFormat]:
    template = tokenizer.chat_template or ""
    if "<tool_call>" in template:
        return Hermes
    if "SmolLM" in template:
        return SmolLM2
    return Hermes
