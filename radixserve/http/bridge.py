"""The programs of one request, as asyncio sees them.

The client calls back on its I/O thread; events cross into the event loop (crossing.py), and the credits of the programs bound how
many can be on their way. Whoever leaves the `async with` block, for whatever reason, closes the programs: the engine stops them
within a step.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from radixserve.http.errors import ApiError, BadRequestError, UnavailableError, from_event
from radixserve.http.program import Numbers, build_ops
from radixserve_lang.errors import RadixServeError
from radixserve_tokenizer.protocol import Admitted, Delta, Done, Failed, Goodbye, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Literal, Self

    from radixserve.http.agent_programs import Visit
    from radixserve.http.config import HttpConfig
    from radixserve.http.crossing import Arrival, Crossing
    from radixserve.http.program import Opening, ProgramSpec
    from radixserve_tokenizer.protocol import Event, FromClient, Priority, RateLimits, Welcome

    QueryKind = Literal["health", "stats", "reset_cache", "tokenize", "detokenize", "usage", "tenant"]


class ChannelLike(Numbers, Protocol):
    """One program, as `radixserve_lang` offers it."""

    def send(self, *messages: FromClient, flush: bool = ...) -> None:
        """Buffer messages; `flush` sends them in one frame."""
        ...

    def grant(self, amount: int) -> None:
        """Take `amount` more deltas."""
        ...

    def close(self) -> None:
        """End the program."""
        ...


class ClientLike(Protocol):
    """The client, as `radixserve_lang` offers it; tests have a small fake of it."""

    @property
    def welcome(self) -> Welcome:
        """The server's greeting. Waits until connected."""
        ...

    def open(
        self,
        on_event: Callable[[Event], None],
        *,
        api_key: str | None = ...,
        seed: int | None = ...,
        priority: Priority = ...,
        cache_salt: str = ...,
        credits: int = ...,
        group: str = ...,
    ) -> ChannelLike:
        """Start a program."""
        ...

    def query(self, kind: QueryKind, body: dict[str, Any] | None = ...) -> Future[dict[str, Any]]:
        """Ask something that is no program."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class RunningPrograms:
    """The programs of a request, run side by side; iterate for `(choice, Delta | Done)` until every choice is done.

    Choices are numbered through, prompt by prompt. Any failure of any of them is raised as an `ApiError`.
    """

    def __init__(
        self,
        client: ClientLike,
        specs: Sequence[ProgramSpec],
        opening: Opening,
        config: HttpConfig,
        crossing: Crossing,
        visit: Visit | None = None,
    ) -> None:
        """`visit`: whose request it is, if it belongs to an agent program; the only channel may then be kept after the answer."""
        self._client = client
        self._specs = specs
        self._opening = opening
        self._config = config
        self._crossing = crossing
        self._visit = visit
        self._is_kept = False
        self._events: asyncio.Queue[Arrival] = asyncio.Queue()
        self._held: deque[Arrival] = deque()
        self._channels: list[ChannelLike] = []
        self._choices: dict[tuple[int, int], int] = {}
        self._num_choices = sum(spec.n for spec in specs)
        self._unfinished = self._num_choices
        self._to_grant = [0] * len(specs)
        self.limits: RateLimits | None = None
        """The tenant's limits as of the last admission; None if it has none."""
        self.arrived_at = 0.0
        """When what was yielded last came from the engine: the time that a slow reader takes is not the engine's."""

    async def __aenter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None and self._unfinished == 0 and self._visit is not None and self._visit.keeps:
            self._keep(self._visit)
        self._close()

    async def admitted(self) -> None:
        """Wait until every program is admitted and has its first event, so that a refusal or a bad input still has its HTTP status."""
        unadmitted = set(range(len(self._specs)))
        silent = set(unadmitted)
        try:
            async with asyncio.timeout(self._config.admission_timeout_s):
                while unadmitted:
                    unadmitted -= await self._look_ahead(silent)
        except TimeoutError:
            raise UnavailableError("The engine did not answer in time. Try again.", code="engine_timeout") from None
        while silent:
            await self._look_ahead(silent)
        if self._visit is not None:
            self._visit.begun()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Delta | Done]:
        while True:
            if self._unfinished == 0:
                raise StopAsyncIteration
            program, event, self.arrived_at = self._held.popleft() if self._held else await self._next()
            if not isinstance(event, (Delta, Done)):
                continue
            choice = self._choices.get((program, event.var))
            if choice is None:
                continue
            if isinstance(event, Done):
                if event.finish_reason == "abort":
                    raise ApiError("The generation was aborted by the server.", status=500, code="aborted")
                self._unfinished -= 1
            else:
                self._to_grant[program] += 1
            return choice, event

    def written(self) -> None:
        """What was yielded so far is with the client: let as many deltas follow. Granted in lots, each is a message."""
        lot = max(1, self._config.stream_credits // 4)
        for program, amount in enumerate(self._to_grant):
            if amount >= lot:
                self._to_grant[program] = 0
                self._channels[program].grant(amount)

    def _start(self) -> None:
        opening = self._opening
        choice = 0
        try:
            for index, spec in enumerate(self._specs):
                channel = self._client.open(
                    self._crossing.to(self._arrived, index),
                    api_key=opening.api_key,
                    seed=opening.seed,
                    priority=opening.priority,
                    cache_salt=opening.cache_salt,
                    credits=self._config.stream_credits,
                    group=opening.group,
                )
                self._channels.append(channel)
                ops, variables = build_ops(spec, channel, self._config.fork_chunk)
                for var in variables:
                    self._choices[index, var] = choice
                    choice += 1
                channel.send(*ops, flush=True)
        except RadixServeError as error:
            raise UnavailableError(f"The engine can't be reached: {error}", code="connection_lost") from error
        except ValueError as error:
            raise BadRequestError(f"The request can't be sent to the engine: {error}") from error

    def _arrived(self, arrival: Arrival) -> None:
        if self._is_kept and self._visit is not None:
            self._visit.heard(arrival.event)
        else:
            self._events.put_nowait(arrival)

    def _keep(self, visit: Visit) -> None:
        self._is_kept = True
        visit.keep(self._channels.pop())
        while not self._events.empty():
            visit.heard(self._events.get_nowait().event)

    def _close(self) -> None:
        for channel in self._channels:
            channel.close()

    async def _look_ahead(self, silent: set[int]) -> set[int]:
        """Take one event: whoever it admits is returned, whoever begins to answer is no longer silent."""
        arrival = await self._next()
        if isinstance(arrival.event, Admitted):
            self.limits = arrival.event.limits
            return {arrival.program}
        if isinstance(arrival.event, (Delta, Done)):
            silent.discard(arrival.program)
            self._held.append(arrival)
        return set()

    async def _next(self) -> Arrival:
        arrival = await self._events.get()
        if isinstance(arrival.event, (Refused, Failed, Goodbye)):
            raise from_event(arrival.event, self._specs[arrival.program].request_fields)
        return arrival
