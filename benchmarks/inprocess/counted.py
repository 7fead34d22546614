"""A small fixed workload over the whole stack, for its counts: chats, agents, a fork with scores.

Every token drawn is the same one, by a bias that no model outweighs: neither the weights nor the arithmetic of a machine can
change what is counted.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.inprocess.stack import Counted, Stack
from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TOKEN = 70
SYSTEM = "You are the assistant of a harbour. You answer in few words and always name the ship. " * 4
_QUESTIONS = ("Which ship is at the pier?", "When does the ferry leave?", "Who loads the grain?", "Where is the pilot?")


class _Program:
    """Numbers the ops of one program."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._ops = 0
        self._vars = 0

    def open(self) -> wire.FromClient:
        """Always the same seed."""
        return wire.Open(program=self.number, seed=self.number, credits=1 << 20)

    def append(self, role: str, text: str, branch: int = 0) -> wire.FromClient:
        """A message."""
        return wire.Append(program=self.number, op=self._op(), branch=branch, role=role, parts=(wire.Text(text=text),))

    def gen(self, max_tokens: int, branch: int = 0) -> wire.FromClient:
        """So many tokens, streamed."""
        sampling = wire.Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, logit_bias={_TOKEN: 100.0})
        return wire.Gen(program=self.number, op=self._op(), branch=branch, var=self._var(), sampling=sampling, stream=True)

    def score(self, options: tuple[str, ...], branch: int = 0) -> wire.FromClient:
        """Options after the branch."""
        return wire.Score(program=self.number, op=self._op(), branch=branch, var=self._var(), options=options)

    def fork(self, first: int, count: int) -> wire.FromClient:
        """Branches from the root."""
        return wire.Fork(program=self.number, op=self._op(), branch=0, first=first, count=count)

    def close(self) -> wire.FromClient:
        """The end."""
        return wire.Close(program=self.number)

    def _op(self) -> int:
        self._ops += 1
        return self._ops - 1

    def _var(self) -> int:
        self._vars += 1
        return self._vars - 1


def _chats(stack: Stack) -> None:
    """Four at once over one system prompt; the first computes it."""
    programs = [_Program(1 + index) for index in range(4)]
    for program, question in zip(programs, _QUESTIONS, strict=True):
        stack.send([program.open(), program.append("system", SYSTEM), program.append("user", question), program.gen(12)])
    stack.settle()
    stack.send([program.close() for program in programs])
    stack.settle()


def _agents(stack: Stack) -> None:
    """Three of three turns, whose conversations grow."""
    programs = [_Program(10 + index) for index in range(3)]
    for turn in range(3):
        for index, program in enumerate(programs):
            begin = [program.open(), program.append("system", SYSTEM)] if turn == 0 else []
            stack.send([*begin, program.append("user", f"{_QUESTIONS[turn]} Agent {index}."), program.gen(8)])
        stack.settle()
    stack.send([program.close() for program in programs])
    stack.settle()


def _fork(stack: Stack) -> None:
    """A tree: eight branches of one prompt that write, then a score on each."""
    program = _Program(20)
    messages = [program.open(), program.append("user", SYSTEM + _QUESTIONS[0]), program.fork(1, 8)]
    messages += [program.gen(6, branch) for branch in range(1, 9)]
    messages += [program.score((" pier", " quay"), branch) for branch in range(1, 9)]
    stack.send(messages)
    stack.settle()
    stack.send([program.close()])
    stack.settle()


PARTS: dict[str, Callable[[Stack], None]] = {"chats": _chats, "agents": _agents, "fork": _fork}
#: Counters of the runtime that are compared.
COUNTERS = (
    "num_steps",
    "num_batched_tokens",
    "num_prompt_tokens",
    "num_prompt_tokens_computed",
    "num_cached_tokens",
    "num_output_tokens",
    "num_preemptions",
)


def count(model: Path) -> dict[str, dict[str, int]]:
    """Counts of each part, by name, from one engine."""
    stack = Stack(model)
    found: dict[str, dict[str, int]] = {}
    for name, part in PARTS.items():
        stack.counted = Counted()
        before = stack.engine.stats()
        part(stack)
        after = stack.engine.stats()
        counts: dict[str, int] = {counter: getattr(after, counter) - getattr(before, counter) for counter in COUNTERS}
        ways: dict[str, dict[str, Any]] = asdict(stack.counted)
        counts |= {f"{way}.{unit}": value for way, units in ways.items() for unit, value in units.items()}
        found[name] = counts
    return found
