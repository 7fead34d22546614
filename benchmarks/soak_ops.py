"""A random program for the soak, op by op over the low-level client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.load import WORDS as PLAIN_WORDS
from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

WORDS = [*PLAIN_WORDS[:10], "Ünïcode", "日本", "🙂", "\n\n", "{}"]


def words(rng: random.Random, count: int) -> str:
    """Some text. Few first words: prompts share prefixes, and differ inside pages."""
    return " ".join([WORDS[rng.randrange(3)], *(rng.choice(WORDS) for _ in range(count - 1))]) or "x"


def send_random_ops(channel: Any, rng: random.Random) -> set[int]:
    """Gens, scores, appends, rollbacks to any earlier op, forks, leases, cancels and drops; returns the variables that must be answered."""
    ops = _RandomOps(channel, rng)
    ops.append(0)
    kinds: list[Callable[[int], None]] = [
        ops.gen, ops.gen, ops.append, ops.rollback, ops.fork, ops.score, ops.lease, ops.lease, ops.release, ops.cancel, ops.drop,
    ]  # fmt: skip
    for _ in range(rng.randrange(1, 12)):
        rng.choice(kinds)(rng.choice(list(ops.of_branch)))
        if rng.random() < 0.3:
            channel.flush()
    if rng.random() < 0.3:
        for branch in ops.of_branch:  # all at once, in a pool that can't hold them
            channel.send(wire.Lease(**ops.head(branch), ttl_s=60.0))
    channel.flush()
    return ops.expected


class _RandomOps:
    """One method for each kind of op, on a branch."""

    def __init__(self, channel: Any, rng: random.Random) -> None:
        self._channel = channel
        self._rng = rng
        self.of_branch: dict[int, list[int]] = {0: []}
        self.expected: set[int] = set()

    def head(self, branch: int) -> dict[str, Any]:
        """What every op has."""
        number = self._channel.next_op()
        self.of_branch[branch].append(number)
        return {"program": self._channel.program, "op": number, "branch": branch}

    def _var(self) -> int:
        self.expected.add(var := self._channel.next_var())
        return int(var)

    def gen(self, branch: int) -> None:
        """A generation."""
        rng = self._rng
        sampling = wire.Sampling(max_tokens=rng.choice((1, 4, 20)), ignore_eos=True, logprobs=rng.choice((-1, 2)))
        self._channel.send(wire.Gen(**self.head(branch), var=self._var(), stream=rng.random() < 0.5, sampling=sampling))

    def score(self, branch: int) -> None:
        """A score."""
        self._channel.send(wire.Score(**self.head(branch), var=self._var(), options=("one", "two", "three and more")))

    def append(self, branch: int) -> None:
        """Text, and perhaps another branch's variable; a branch that is new begins a message."""
        parts: tuple[wire.Part, ...] = (wire.Text(text=words(self._rng, 3)),)
        if self.expected and self._rng.random() < 0.5:
            parts += (wire.VarRef(var=self._rng.choice(sorted(self.expected))),)
        role = "user" if not branch and not self.of_branch[0] else ""
        self._channel.send(wire.Append(**self.head(branch), role=role, parts=parts))

    def rollback(self, branch: int) -> None:
        """To any of the branch's ops, itself a rollback or not."""
        if self.of_branch[branch]:
            to_op = self._rng.choice(self.of_branch[branch])
            self._channel.send(wire.Rollback(**self.head(branch), to_op=to_op))

    def fork(self, branch: int) -> None:
        """Into one to three."""
        if len(self.of_branch) < 12:
            count = self._rng.randrange(1, 4)
            first = self._channel.next_branches(count)
            self._channel.send(wire.Fork(**self.head(branch), first=first, count=count))
            self.of_branch.update({number: [] for number in range(first, first + count)})

    def lease(self, branch: int) -> None:
        """For less time than a step, for some steps, or for longer than anything else takes."""
        self._channel.send(wire.Lease(**self.head(branch), ttl_s=self._rng.choice((0.01, 0.3, 60.0))))

    def release(self, branch: int) -> None:
        """Whether there is a lease or not."""
        self._channel.send(wire.Release(**self.head(branch)))

    def cancel(self, branch: int) -> None:
        """What the branch does; its lease stays."""
        self._channel.send(wire.Cancel(program=self._channel.program, branches=(branch,)))

    def drop(self, branch: int) -> None:
        """Forget a branch, leased or not."""
        if branch:
            self._channel.send(wire.Drop(program=self._channel.program, branches=(branch,)))
            del self.of_branch[branch]
