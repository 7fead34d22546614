"""A small load generator over the project's own client, for the studies beside it. Times are taken on arrival at the client."""

from __future__ import annotations

import queue
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.protocol import Append, Delta, Done, Failed, Gen, Goodbye, Refused, Sampling, Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.client import Client
    from radixserve_tokenizer.protocol import Event, Priority

WORDS = [
    "river",
    "stone",
    "market",
    "engine",
    "paper",
    "winter",
    "signal",
    "garden",
    "copper",
    "harbor",
    "library",
    "teacher",
    "window",
    "mountain",
    "planet",
    "software",
    "dinner",
    "kitchen",
    "bridge",
    "forest",
    "island",
    "captain",
    "village",
    "doctor",
    "number",
    "letter",
    "summer",
    "coffee",
    "orange",
    "system",
    "memory",
    "network",
]


def words(client: Client, num_tokens: int, seed: int) -> str:
    """Plain text of about `num_tokens` tokens (never more), the same for the same seed."""
    rng = random.Random(seed)
    text = " ".join(rng.choice(WORDS) for _ in range(num_tokens))
    ids = client.query("tokenize", {"text": text}).result(30)["ids"][:num_tokens]
    return str(client.query("detokenize", {"ids": ids}).result(30)["text"])


@dataclass
class Call:
    """One chat request and what came of it."""

    messages: list[tuple[str, str]]
    sampling: Sampling
    stream: bool = True
    api_key: str | None = None
    priority: Priority = "standard"
    started_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    done: Done | None = None
    error: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    on_end: Any = None
    channel: Any = None

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first text."""
        return self.arrivals_s[0] - self.started_s

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between arrivals of text."""
        return [b - a for a, b in zip(self.arrivals_s, self.arrivals_s[1:], strict=False)]

    def start(self, client: Client) -> None:
        """Send it."""
        self.started_s = time.perf_counter()
        self.channel = channel = client.open(self._hear, api_key=self.api_key, priority=self.priority, credits=1 << 20)
        for role, content in self.messages:
            channel.send(Append(program=channel.program, op=channel.next_op(), branch=0, role=role, parts=(Text(text=content),)))
        channel.send(
            Gen(
                program=channel.program,
                op=channel.next_op(),
                branch=0,
                var=channel.next_var(),
                sampling=self.sampling,
                stream=True,
            ),
            flush=True,
        )

    def stop(self) -> None:
        """Leave it: the program is closed, as by a client that goes away."""
        self.channel.close()
        self._end("aborted")

    def _hear(self, event: Event) -> None:
        match event:
            case Delta():
                self.arrivals_s.append(time.perf_counter())
            case Done():
                self.done = event
                self._end("")
            case Failed() | Refused() | Goodbye():
                self._end(f"{getattr(event, 'code', 'goodbye')}: {event.message}")
            case _:
                pass

    def _end(self, error: str) -> None:
        if self.ended.is_set():
            return
        self.error = error
        self.ended.set()
        if self.on_end is not None:
            self.on_end(self)


def run_calls(client: Client, calls: list[Call], concurrency: int, timeout_s: float = 600.0) -> float:
    """Run all, `concurrency` at a time in order; returns the wall time in seconds. Raises on the first failed call."""
    finished: queue.SimpleQueue[Call] = queue.SimpleQueue()
    waiting = list(reversed(calls))
    started = time.perf_counter()
    for _ in range(min(concurrency, len(calls))):
        call = waiting.pop()
        call.on_end = finished.put
        call.start(client)
    for _ in calls:
        ended = finished.get(timeout=timeout_s)
        if ended.error and ended.error != "aborted":
            raise RuntimeError(ended.error)
        if waiting:
            call = waiting.pop()
            call.on_end = finished.put
            call.start(client)
        ended.channel.close()
    return time.perf_counter() - started


class Flood:
    """Keeps `outstanding` calls of one kind under way until it is stopped."""

    def __init__(self, client: Client, outstanding: int, make: Callable[[int], Call]) -> None:
        self._client = client
        self._make = make
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._calls: list[Call] = []
        self._stopped = False
        for _ in range(outstanding):
            self._next()

    def _next(self) -> None:
        with self._lock:
            if self._stopped:
                return
            number = len(self._calls)
            call = self._make(number)
            call.on_end = lambda _: self._ended(number)
            self._calls.append(call)
            self._running.add(number)
        call.start(self._client)

    def _ended(self, number: int) -> None:
        # On the client's I/O thread: closing and opening only queue messages.
        self._running.discard(number)
        self._calls[number].channel.close()
        self._next()

    @property
    def num_done(self) -> int:
        """Calls that ended well."""
        return sum(call.done is not None for call in self._calls)

    @property
    def errors(self) -> list[str]:
        """What went wrong, if anything did."""
        return [call.error for call in self._calls if call.error and call.error != "aborted"]

    def stop(self) -> list[Call]:
        """Leave what still runs; returns all calls that were started."""
        with self._lock:
            self._stopped = True
        for number in list(self._running):
            self._calls[number].stop()
        return self._calls


def stats(client: Client) -> dict[str, Any]:
    """The runtime's counters, fresh: a reset of what is unused in the cache is not implied."""
    return dict(client.query("stats").result(30))


def settled_stats(client: Client, timeout_s: float = 10.0) -> dict[str, Any]:
    """Counters once nothing runs any more (they travel with the runtime's heartbeat)."""
    deadline = time.monotonic() + timeout_s
    last: dict[str, Any] = {}
    while time.monotonic() < deadline:
        time.sleep(0.6)
        now = stats(client)
        if (
            {k: v for k, v in now.items() if k != "uptime_s"} == {k: v for k, v in last.items() if k != "uptime_s"}
            and not now["num_running"]
            and not now["num_waiting"]
        ):
            return now
        last = now
    raise RuntimeError(f"the engine did not come to rest: {last}")


def percentile(values: list[float], fraction: float) -> float:
    """Linear interpolation between order statistics."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * fraction
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
