"""What a program may use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from radixserve_tokenizer import protocol as wire


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a whole program, enforced by the server; None is no limit. What goes beyond raises `BudgetExceededError` at its read."""

    tokens: int | None = None
    """Output tokens of all branches together."""
    seconds: float | None = None
    """From the program's admission."""
    tool_calls: int | None = None
    """Calls that its generations make."""

    def __post_init__(self) -> None:
        for name, value in (("tokens", self.tokens), ("tool_calls", self.tool_calls)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"Budget({name}={value!r}): a whole number of 0 or more, or None for no limit")
        if self.seconds is not None and not (0 < self.seconds < math.inf):
            raise ValueError(f"Budget(seconds={self.seconds!r}): above 0, or None for no limit")

    def on_the_wire(self) -> wire.Budget:
        """As the server gets it."""
        return wire.Budget(tokens=self.tokens, seconds=self.seconds, tool_calls=self.tool_calls)

    def __str__(self) -> str:
        parts = [
            f"{self.tokens} tokens" if self.tokens is not None else "",
            f"{self.seconds:.3g} s" if self.seconds is not None else "",
            f"{self.tool_calls} tool calls" if self.tool_calls is not None else "",
        ]
        return ", ".join(filter(None, parts)) or "nothing"
