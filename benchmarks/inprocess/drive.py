"""Drives an `EngineCore` message by message, as frames of its protocol, and counts what it did."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixserve_runtime import protocol as rt
from radixserve_runtime.scheduler.sequence import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.inprocess.agents import AgentWork
    from radixserve_runtime.engine.core import EngineCore


@dataclass(slots=True)
class Wire:
    """What would have crossed the socket between the tokenizer process and the runtime."""

    num_messages: int = 0
    num_frames: int = 0
    num_bytes: int = 0

    def add(self, messages: Sequence[Any]) -> None:
        """A frame."""
        if messages:
            self.num_messages += len(messages)
            self.num_frames += 1
            self.num_bytes += len(rt.encode(list(messages)))


@dataclass(slots=True)
class Outcome:
    """One pass over a workload."""

    wall_s: float = 0.0
    num_forward_passes: int = 0
    num_tokens_computed: int = 0
    num_prompt_tokens_computed: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    queued_s: list[float] = field(default_factory=list[float])
    held_slots: int = 0
    """Token slots in pages of running sequences, summed over steps."""
    unused_slots: int = 0
    """Of them those that hold no token."""
    sent: Wire = field(default_factory=Wire)
    heard: Wire = field(default_factory=Wire)

    @property
    def waste(self) -> float:
        """Share of the KV that running sequences hold, and that holds nothing."""
        return self.unused_slots / self.held_slots if self.held_slots else 0.0


class _Agent:
    """An agent under way: its token log, and what the runtime holds of it."""

    def __init__(self, number: int, work: AgentWork) -> None:
        self.number = number
        self.work = work
        self.turn = 0
        self.pending = [*work.preamble, *work.turns[0].new_ids]
        self._length = 0
        self._hash = 0

    def message(self, request_id: int) -> rt.Generate:
        """The next turn."""
        base = rt.Base(length=self._length, hash=self._hash, new_ids=tuple(self.pending))
        self._hash = rt.log_hash(self.pending, self._hash)
        self._length += len(self.pending)
        self.pending = []
        output = self.work.turns[self.turn].num_output
        return rt.Generate(
            request_id=request_id,
            branch_id=self.number + 1,
            base=base,
            sampling=rt.Sampling(max_tokens=output, seed=self.number, temperature=0.0, ignore_eos=True),
            owner=rt.Owner(program=self.number + 1),
        )

    def finish(self) -> bool:
        """A turn is over; whether there is another."""
        self.turn += 1
        if self.turn == len(self.work.turns):
            return False
        self.pending += self.work.turns[self.turn].new_ids
        return True


def greet(core: EngineCore, vocab_size: int) -> None:
    """Say hello with a vocabulary whose tokens' bytes do not matter."""
    core.handle(rt.Hello(version=rt.PROTOCOL_VERSION, fingerprint="bench", vocabulary=(b"x",) * vocab_size, eos_token_ids=(2,)))
    if not isinstance(core.take_events()[0], rt.Ready):
        raise RuntimeError("the runtime did not say that it is ready")


def live(
    core: EngineCore,
    agents: Sequence[AgentWork],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> Outcome:
    """All agents at once, each sending its next turn when the last is answered; to the end of all."""
    outcome = Outcome()
    before = core.stats()
    everyone = [_Agent(number, work) for number, work in enumerate(agents)]
    running: dict[int, _Agent] = {}
    next_id = 1
    began = clock()

    def send(ready: Sequence[_Agent]) -> None:
        nonlocal next_id
        messages: list[rt.Generate] = []
        for agent in ready:
            messages.append(agent.message(next_id))
            running[next_id] = agent
            next_id += 1
        outcome.sent.add(messages)
        for message in messages:
            core.handle(message)

    send(everyone)
    while running:
        stepped = core.step()
        events = core.take_events()
        outcome.heard.add(events)
        _look(core, outcome)
        send(_hear(events, running, outcome))
        if not stepped and running:
            due = core.next_deadline_s
            sleep(0.0005 if due is None else max(0.0, due - time.monotonic()))
    outcome.wall_s = clock() - began
    after = core.stats()
    outcome.num_forward_passes = after.num_steps - before.num_steps
    outcome.num_tokens_computed = after.num_batched_tokens - before.num_batched_tokens
    outcome.num_prompt_tokens_computed = after.num_prompt_tokens_computed - before.num_prompt_tokens_computed
    outcome.num_output_tokens = after.num_output_tokens - before.num_output_tokens
    outcome.num_preemptions = after.num_preemptions - before.num_preemptions
    return outcome


def _hear(events: Sequence[Any], running: dict[int, _Agent], outcome: Outcome) -> list[_Agent]:
    """Take output in; agents that have another turn to send. Raises `RuntimeError` when a request failed."""
    ready: list[_Agent] = []
    for event in events:
        match event:
            case rt.Tokens():
                running[event.request_id].pending += event.token_ids
            case rt.Finished():
                agent = running.pop(event.request_id)
                outcome.queued_s.append(event.usage.queued_s)
                if agent.finish():
                    ready.append(agent)
            case rt.Failed() | rt.NeedTokens():
                raise RuntimeError(f"a request failed: {event}")
            case _:
                pass
    return ready


def _look(core: EngineCore, outcome: Outcome) -> None:
    """How full the pages of running sequences are; a page that several hold counts once."""
    size = core.stats().page_size_tokens
    filled: dict[int, int] = {}
    for sequence in core._requests.sequences:
        if sequence.status is Status.RUNNING:
            for index, page in enumerate(sequence.pages):
                tokens = min(size, max(0, sequence.num_computed - index * size))
                filled[page] = max(filled.get(page, 0), tokens)
    outcome.held_slots += size * len(filled)
    outcome.unused_slots += size * len(filled) - sum(filled.values())
