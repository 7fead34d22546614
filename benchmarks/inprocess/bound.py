"""What a workload's counted work allows: the time that its least work takes at rates measured on the same engine in the same run.

Counted are prompt tokens, each distinct prefix once (what the cache of an engine without limits would not have), and decode
steps, with as many agents in a step as there are slots, those with most left first, and nobody waiting for a prompt. The time
is tokens / (tokens a second of a prefill alone) + for every step the time of a pure decode step of its size.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve_runtime import protocol as rt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.inprocess.agents import AgentWork
    from radixserve_runtime.engine.core import EngineCore

_DECODES = 8


@dataclass(frozen=True, slots=True)
class Work:
    """The least that a workload needs."""

    prompt_tokens: int
    steps: dict[int, int]
    """Decode steps by how many sequences take part."""

    @property
    def num_steps(self) -> int:
        """Decode steps of all sizes."""
        return sum(self.steps.values())


def least_work(agents: Sequence[AgentWork], slots: int) -> Work:
    """Of agents that share their preamble."""
    prompt = len(agents[0].preamble) if agents else 0
    left: list[int] = []
    for agent in agents:
        # After its first turn an agent's prompt also has the last token that was written, which has no KV yet.
        prompt += sum(len(turn.new_ids) for turn in agent.turns) + len(agent.turns) - 1
        left.append(sum(turn.num_output - 1 for turn in agent.turns))
    steps: dict[int, int] = {}
    while any(left):
        left.sort(reverse=True)
        size = sum(one > 0 for one in left[:slots])
        steps[size] = steps.get(size, 0) + 1
        for index in range(size):
            left[index] -= 1
    return Work(prompt, steps)


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one engine."""

    prefill_tokens_per_s: float
    step_s: dict[int, float]
    """Of a pure decode step by how many sequences take part: some sizes."""

    def decode_s(self, size: int) -> float:
        """Of a step of any size, between the measured ones on a straight line."""
        sizes = sorted(self.step_s)
        low = max((one for one in sizes if one <= size), default=sizes[0])
        high = min((one for one in sizes if one >= size), default=sizes[-1])
        if low == high:
            return self.step_s[low]
        return self.step_s[low] + (self.step_s[high] - self.step_s[low]) * (size - low) / (high - low)

    def seconds(self, work: Work) -> float:
        """What the work takes at these rates."""
        return work.prompt_tokens / self.prefill_tokens_per_s + sum(
            count * self.decode_s(size) for size, count in work.steps.items()
        )


def typical_context(agents: Sequence[AgentWork]) -> int:
    """Mean length of a prompt, over all turns."""
    lengths: list[int] = []
    for agent in agents:
        length = len(agent.preamble)
        for turn in agent.turns:
            length += len(turn.new_ids)
            lengths.append(length)
            length += turn.num_output
    return sum(lengths) // len(lengths)


def measure_rates(core: EngineCore, slots: int, shared: int, context: int, vocab_size: int) -> Rates:
    """Cold prompts of `context` tokens for prefill; decode steps after prompts of which the first `shared` tokens are common, of
    1, 2, 4, ... sequences up to `slots`: an engine that reads shared KV once is held to what it does then.
    """
    sizes = sorted({min(1 << power, slots) for power in range(slots.bit_length() + 1)})
    meter = _Meter(core, vocab_size, min(shared, context - 1))
    prefill = statistics.median(meter.prefill(context) for _ in range(3))
    return Rates(context / prefill, {size: statistics.median(meter.decodes(size, context)) for size in sizes})


class _Meter:
    """Sends requests that share nothing, or a beginning."""

    def __init__(self, core: EngineCore, vocab_size: int, shared: int) -> None:
        self._core = core
        self._shared = shared
        self._vocab_size = vocab_size
        self._number = 1 << 30

    def prefill(self, context: int) -> float:
        """Seconds of one cold prompt."""
        self._send(context, 1)
        began = time.perf_counter()
        self._run()
        return time.perf_counter() - began

    def decodes(self, size: int, context: int) -> list[float]:
        """Seconds of each of some decode steps of so many sequences."""
        for _ in range(size):
            # While the last prompts are read, in chunks of at least 16, the first ones write already.
            self._send(context, size * (context // 16 + 2) + 2 * _DECODES, shared=self._shared)
        first = self._number - size + 1
        waiting = set(range(first, first + size))
        while waiting:
            self._core.step()
            events = self._core.take_events()
            failed = [event for event in events if isinstance(event, rt.Failed | rt.Finished)]
            if failed:
                raise RuntimeError(f"a decode step of {size} sequences could not be measured: {failed[0]}")
            waiting -= {event.request_id for event in events if isinstance(event, rt.Tokens)}
        times: list[float] = []
        for _ in range(_DECODES):
            began = time.perf_counter()
            self._core.step()
            self._core.take_events()
            times.append(time.perf_counter() - began)
        self._core.handle(rt.Cancel(request_ids=tuple(range(first, first + size))))
        self._run()
        return times

    def _send(self, context: int, output: int, shared: int = 0) -> None:
        self._number += 1
        # Prompts differ in their first token, or in the first one that they don't share.
        ids = tuple(
            16 + ((self._number * 7919 if place >= shared else 0) + place * 104_729) % (self._vocab_size - 16)
            for place in range(context)
        )
        self._core.handle(
            rt.Generate(
                request_id=self._number,
                branch_id=self._number,
                base=rt.Base(new_ids=ids),
                sampling=rt.Sampling(max_tokens=output, seed=0, temperature=0.0, ignore_eos=True),
            )
        )

    def _run(self) -> None:
        while self._core.has_work:
            if not self._core.step():
                time.sleep(0.0005)
        self._core.take_events()
        self._core.handle(rt.ResetCache())
        self._core.take_events()
