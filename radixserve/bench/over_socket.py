"""An engine's socket: every conversation is a program, whose branches keep on the engine what has been said."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

from radixserve.bench.ask import BenchError, Outcome
from radixserve_lang.client import Client
from radixserve_lang.errors import ConnectionFailedError, QueryFailedError
from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from radixserve.bench.ask import Message, Output
    from radixserve_lang.channel import Channel

#: More deltas than any answer has: a slow reader must not be what is measured.
_CREDITS = 1 << 24


class SocketTarget:
    """A running engine's tokenizer process. Make it with `open`."""

    def __init__(self, client: Client, keys: Sequence[str]) -> None:
        self.client = client
        self.address = client.url
        card = client.welcome.model
        self.model = card.name
        self.max_context = card.max_context
        self.keys = tuple(keys) or (None,)
        self.num_keys = len(self.keys)
        self.notes: list[str] = []

    @classmethod
    async def open(cls, url: str, *, keys: Sequence[str] = ()) -> Self:
        """Connect. Raises `BenchError` when nobody answers."""
        client = Client(url, api_key=keys[0] if keys else "", name="bench")
        try:
            await asyncio.to_thread(lambda: client.welcome)
        except ConnectionFailedError as error:
            client.close()
            raise BenchError(str(error)) from error
        return cls(client, keys)

    def converse(self, key: int = 0) -> SocketConversation:
        """A new program with one of the keys."""
        return SocketConversation(_Program(self, key), 0)

    async def count(self, messages: Sequence[Message]) -> int:
        """By the tokenizer process."""
        body = {"messages": [{"role": role, "content": content} for role, content in messages], "add_generation_prompt": True}
        try:
            return len((await asyncio.wrap_future(self.client.query("tokenize", body)))["ids"])
        except QueryFailedError as error:
            raise BenchError(f"{self.address} can't tokenize: {error}") from error

    async def close(self) -> None:
        """End the connection."""
        await asyncio.to_thread(self.client.close)


class _Pending:
    """A generation under way. Heard on the client's I/O thread, which alone writes the outcome until it is over."""

    def __init__(self, outcome: Outcome, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self.outcome = outcome
        self.over: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._left = count
        self._last_s: dict[int, float] = {}

    def delta(self, event: wire.Delta) -> None:
        if not (event.text or event.reasoning or event.calls):
            return
        now = time.perf_counter()
        outcome = self.outcome
        outcome.num_chunks += 1
        if outcome.first_s is None:
            outcome.first_s = now
        before = self._last_s.get(event.op)
        if before is not None:
            outcome.gaps_s.append(now - before)
        self._last_s[event.op] = now

    def done(self, event: wire.Done) -> None:
        outcome, usage = self.outcome, event.usage
        if outcome.ended_s:
            return
        outcome.texts.append(event.value)
        outcome.finish_reasons.append(event.finish_reason)
        outcome.prompt_tokens = max(outcome.prompt_tokens or 0, usage.prompt_tokens)
        # Branches of one prompt hit what the first of them computed: the smallest hit is what was there before.
        cached = outcome.cached_tokens
        outcome.cached_tokens = usage.cached_tokens if cached is None else min(cached, usage.cached_tokens)
        outcome.reported_tokens = (outcome.reported_tokens or 0) + usage.output_tokens
        self._left -= 1
        if not self._left:
            self.end("")

    def end(self, error: str) -> None:
        outcome = self.outcome
        if outcome.ended_s:
            return
        outcome.error = error
        outcome.ended_s = time.perf_counter()
        self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class _Program:
    """One program and who waits for its ops."""

    def __init__(self, target: SocketTarget, key: int) -> None:
        self.key = key
        self.users = 1
        self.pending: dict[int, _Pending] = {}
        self.gone = ""
        self.channel: Channel = target.client.open(self._hear, api_key=target.keys[key % len(target.keys)], credits=_CREDITS)

    def _hear(self, event: wire.Event) -> None:
        match event:
            case wire.Delta() | wire.Done():
                pending = self.pending.get(event.op)
                if pending is not None:
                    (pending.delta(event) if isinstance(event, wire.Delta) else pending.done(event))
            case wire.Failed() if event.op in self.pending:
                self.pending[event.op].end(f"{event.code}: {event.message}")
            case wire.Refused() | wire.Goodbye():
                self.gone = f"{event.status} {event.code}: {event.message}" if isinstance(event, wire.Refused) else event.message
                for pending in list(self.pending.values()):
                    pending.end(self.gone)
            case _:
                pass

    def release(self) -> None:
        """One conversation less; the last one closes the program."""
        self.users -= 1
        if not self.users:
            self.channel.close()


class SocketConversation:
    """A branch of a program."""

    def __init__(self, program: _Program, branch: int) -> None:
        self._program = program
        self._branch = branch

    async def say(self, messages: Sequence[Message], output: Output, label: str = "") -> Outcome:
        """Append messages and generate; with `n`, on so many forks."""
        program, channel = self._program, self._program.channel
        outcome = Outcome(output, time.perf_counter(), key=program.key, label=label)
        appends = [
            wire.Append(
                program=channel.program, op=channel.next_op(), branch=self._branch, role=role, parts=(wire.Text(text=content),)
            )
            for role, content in messages
        ]
        branches = [self._branch]
        forks: list[wire.FromClient] = []
        if output.n > 1:
            first = channel.next_branches(output.n)
            branches = list(range(first, first + output.n))
            forks.append(
                wire.Fork(program=channel.program, op=channel.next_op(), branch=self._branch, first=first, count=output.n)
            )
        gens = [self._gen(branch, output) for branch in branches]
        pending = _Pending(outcome, len(gens), asyncio.get_running_loop())
        program.pending.update(dict.fromkeys((gen.op for gen in gens), pending))
        channel.send(*appends, *forks, *gens, flush=True)
        if program.gone:
            pending.end(program.gone)
        await pending.over
        for gen in gens:
            del program.pending[gen.op]
        return outcome

    def _gen(self, branch: int, output: Output) -> wire.Gen:
        channel = self._program.channel
        schema = output.schema
        return wire.Gen(
            program=channel.program,
            op=channel.next_op(),
            branch=branch,
            var=channel.next_var(),
            sampling=wire.Sampling(
                max_tokens=output.max_tokens,
                temperature=output.temperature,
                ignore_eos=output.exact,
                seed=output.seed if output.n == 1 else None,
            ),
            constraint=None if schema is None else wire.Constraint(kind="json_schema", source=json.dumps(schema)),
            stream=True,
        )

    async def fork(self, count: int) -> list[SocketConversation]:
        """Branches of the same program."""
        program, channel = self._program, self._program.channel
        first = channel.next_branches(count)
        channel.send(wire.Fork(program=channel.program, op=channel.next_op(), branch=self._branch, first=first, count=count))
        program.users += count
        return [SocketConversation(program, first + index) for index in range(count)]

    async def close(self) -> None:
        """Forget the branch; with the last one the program ends."""
        program = self._program
        if program.users > 1:
            program.channel.send(wire.Drop(program=program.channel.program, branches=(self._branch,)))
        program.release()
