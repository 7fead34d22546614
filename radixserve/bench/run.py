"""One pass of one workload: what it is given, and the outcomes that it leaves."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

from radixserve.bench.ask import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from radixserve.bench.ask import Conversation, Message, Output, Target
    from radixserve.bench.shape import Shape
    from radixserve.bench.words import Speller


class Run:
    """What a workload works with. All its text comes from `source`, in an order that no timing changes: every server sees the same."""

    def __init__(
        self,
        target: Target,
        speller: Speller,
        shape: Shape,
        seed: str,
        part: str = "",
        on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        self.target = target
        self.speller = speller
        self.shape = shape
        self.seed = seed
        """Of this pass, whatever the part. Other passes have others, so a prefix cache is cold in each."""
        self.source = random.Random(f"{seed} {part}")
        self.outcomes: list[Outcome] = []
        self.extras: dict[str, Any] = {}
        """What a workload has to say beside the figures that all have. JSON values."""
        self.notes: list[str] = []
        self._on_outcome = on_outcome

    def text(self, num_tokens: int) -> str:
        """New text of so many tokens."""
        return self.speller.text(num_tokens, self.source)

    def prompt(self, num_tokens: int) -> list[Message]:
        """New messages of so many tokens, template included."""
        return self.speller.prompt(num_tokens, self.source)

    async def say(self, conversation: Conversation, messages: Sequence[Message], output: Output, label: str = "") -> Outcome:
        """A turn, whose outcome is kept."""
        outcome = await conversation.say(messages, output, label)
        self._keep(outcome)
        return outcome

    def lose(self, output: Output, why: str, label: str = "", key: int = 0) -> None:
        """A turn that can't be sent, because of what failed before it, has failed as well: nobody got its answer."""
        now = time.perf_counter()
        self._keep(Outcome(output, now, key=key, label=label, ended_s=now, error=why))

    def _keep(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._on_outcome(outcome)

    async def ask(self, messages: Sequence[Message], output: Output, label: str = "", key: int = 0) -> Outcome:
        """A conversation of one turn."""
        conversation = self.target.converse(key)
        try:
            return await self.say(conversation, messages, output, label)
        finally:
            await conversation.close()

    async def all(self, jobs: Sequence[Callable[[], Awaitable[Any]]], at_a_time: int) -> None:
        """Run jobs in order, so many at a time. The first that raises ends the others."""
        waiting = iter(jobs)

        async def work() -> None:
            for job in waiting:
                await job()

        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_a_time, len(jobs))):
                group.create_task(work())
