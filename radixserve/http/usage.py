"""The `usage` object: prompts counted once, every choice's tokens, and always the cached ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixserve_tokenizer.protocol import Usage


@dataclass
class _PromptUsage:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seen: bool = False


@dataclass
class UsageTally:
    """Adds up what the choices of a request cost; `n` choices share each prompt."""

    n: int
    output_tokens: int = 0
    _prompts: dict[int, _PromptUsage] = field(default_factory=dict[int, _PromptUsage])

    def add(self, choice: int, usage: Usage) -> None:
        """Count one finished choice."""
        self.output_tokens += usage.output_tokens
        prompt = self._prompts.setdefault(choice // self.n, _PromptUsage())
        prompt.prompt_tokens = max(prompt.prompt_tokens, usage.prompt_tokens)
        # The branches of one prompt hit what the first of them computed; what the request found in the cache is the smallest hit.
        prompt.cached_tokens = min(prompt.cached_tokens, usage.cached_tokens) if prompt.seen else usage.cached_tokens
        prompt.seen = True

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each once."""
        return sum(one.prompt_tokens for one in self._prompts.values())

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that did not have to be computed."""
        return sum(one.cached_tokens for one in self._prompts.values())

    def body(self) -> dict[str, Any]:
        """OpenAI's object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
