"""Random requests of every kind, many at a time, on a tiny random model with a pool for about eight of them.

    python -m benchmarks.soak [--requests 3000] [--seed 0] [--concurrency 24] [--model PATH]

Over HTTP (streamed and not, `n`, stop strings, log-probabilities, JSON, clients that hang up), the DSL (forks, scores, failing
programs) and the low-level client (rollbacks, leases, cancels, drops). Exits with 1 unless every request was answered exactly once, the
books balance when it is over, and no process has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import uvicorn

import radixserve as rs
from benchmarks.load import settled_stats
from benchmarks.soak_ops import send_random_ops, words
from radixserve.http.app import create_app
from radixserve.http.config import HttpConfig
from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from radixserve_tokenizer.protocol import Event

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
SETTINGS: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_tokens": 768, "max_running": 8, "log_level": "warning"}
ANSWER_S = 120.0
#: More than this a process may not have grown between the first fifth of the requests and the end.
GROWTH_MB = 64


@dataclass
class Report:
    """What came of the requests."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])
    stats: dict[str, Any] = field(default_factory=dict[str, Any])
    growth_mb: dict[str, float] = field(default_factory=dict[str, float])
    wall_s: float = 0.0


@rs.function
def tree(s: rs.State, question: str, n: int, tokens: int, fails: bool) -> int:
    """A fork, a score and a join; perhaps an exception in the middle."""
    s += (rs.system("Test."), rs.user(question))
    with s.fork(n) as branches:
        values = [branch.gen(max_tokens=tokens, ignore_eos=True) for branch in branches]
        if fails:
            raise ZeroDivisionError
        if n > 1:
            branches[0].score(["yes", "no"]).settle()
        return len([value.value for value in values])


@dataclass
class Soak:
    """The three ways in, and a random request for each."""

    engine: rs.Engine
    url: str
    rng: random.Random
    report: Report = field(default_factory=Report)
    _client: Any = None

    async def run(self, count: int, concurrency: int) -> None:
        """All requests, `concurrency` at a time."""
        gate = asyncio.Semaphore(concurrency)
        kinds: list[tuple[str, Callable[[random.Random], Awaitable[str]]]] = [
            ("http", self._http), ("http", self._http), ("dsl", self._dsl), ("wire", self._wire),
        ]  # fmt: skip
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.url, timeout=ANSWER_S, limits=limits) as http:
            self._client = http

            async def one(name: str, request: Callable[[random.Random], Awaitable[str]], rng: random.Random) -> None:
                async with gate:
                    try:
                        outcome = await asyncio.wait_for(request(rng), ANSWER_S)
                    except Exception as error:
                        self.report.problems.append(f"{name}: {type(error).__name__}: {error}"[:300])
                    else:
                        self.report.outcomes[f"{name} {outcome}"] += 1

            await asyncio.gather(*(one(*self.rng.choice(kinds), random.Random(self.rng.random())) for _ in range(count)))

    # ---- HTTP -----------------------------------------------------------------------------------------------------

    async def _http(self, rng: random.Random) -> str:
        body: dict[str, Any] = {
            "prompt": words(rng, rng.choice((1, 8, 60))),
            "max_tokens": rng.choice((1, 5, 40)),
            "n": rng.choice((1, 1, 4)),
            "temperature": rng.choice((0, 1)),
            "ignore_eos": rng.random() < 0.5,
            "stream": rng.random() < 0.5,
        }
        if rng.random() < 0.3:
            body["logprobs"] = 3
        if rng.random() < 0.3:
            body["stop"] = ["e", "ab", "\n"]
        path = "/v1/completions"
        if rng.random() < 0.2:
            path, body["response_format"] = (
                "/v1/chat/completions",
                {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
            )
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
            body["logprobs"], body["ignore_eos"] = False, False
        if rng.random() < 0.25:
            try:
                async with asyncio.timeout(rng.random() * 0.5):
                    await self._post(path, body)
            except TimeoutError:
                return "left"
            return "answered before leaving"
        return await self._post(path, body)

    async def _post(self, path: str, body: dict[str, Any]) -> str:
        if not body["stream"]:
            answer = await self._client.post(path, json=body)
            if answer.status_code != 200:
                raise RuntimeError(f"{answer.status_code}: {answer.text[:200]}")
            _check_choices([(c["index"], c["finish_reason"]) for c in answer.json()["choices"]], body["n"])
            return "answered"
        ends: list[tuple[int, str]] = []
        last = ""
        async with self._client.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                raise RuntimeError(f"{answer.status_code}: {(await answer.aread())[:200]!r}")
            async for line in answer.aiter_lines():
                last = line or last
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise RuntimeError(line[:300])
                    ends += [(c["index"], c["finish_reason"]) for c in chunk["choices"] if c["finish_reason"]]
        if last != "data: [DONE]":
            raise RuntimeError(f"the stream ended with {last[:100]!r}")
        _check_choices(ends, body["n"])
        return "streamed"

    # ---- the DSL --------------------------------------------------------------------------------------------------

    async def _dsl(self, rng: random.Random) -> str:
        n, fails = rng.choice((1, 3, 6)), rng.random() < 0.2
        arguments = (words(rng, rng.choice((2, 20))), n, rng.choice((1, 6, 30)), fails)
        try:
            async with asyncio.timeout(rng.random() * 0.5 if rng.random() < 0.2 else None):
                run = await tree.arun(*arguments, engine=self.engine, seed=rng.randrange(100))
        except TimeoutError:
            return "cancelled"
        except ZeroDivisionError:
            if not fails:
                raise
            return "raised"
        if run.value != n:
            raise RuntimeError(f"{run.value} of {n} branches have a value")
        return "answered"

    # ---- the wire -------------------------------------------------------------------------------------------------

    async def _wire(self, rng: random.Random) -> str:
        """A program op by op: gens, rollbacks to any earlier op, forks, leases, cancels and drops. Each op with a value is answered once."""
        loop = asyncio.get_running_loop()
        heard: asyncio.Queue[Any] = asyncio.Queue()

        def hear(event: Event) -> None:
            loop.call_soon_threadsafe(heard.put_nowait, event)

        channel = self.engine.client.open(hear, credits=rng.choice((0, 4, 1 << 20)), seed=rng.randrange(1000))
        try:
            expected = send_random_ops(channel, rng)
            answers: Counter[int] = Counter()
            while expected - answers.keys():
                event = await heard.get()
                if isinstance(event, wire.Done | wire.Failed) and event.var >= 0:
                    answers[event.var] += 1
                elif isinstance(event, wire.Refused | wire.Goodbye) or (isinstance(event, wire.Failed) and event.op < 0):
                    raise RuntimeError(f"{event}")
            if answers != Counter(dict.fromkeys(expected, 1)):
                raise RuntimeError(f"{len(expected)} ops were answered so: {answers}")
        finally:
            channel.close()
        return "answered"


def _check_choices(ends: list[tuple[int, str]], n: int) -> None:
    if sorted(index for index, _ in ends) != list(range(n)) or not all(reason for _, reason in ends):
        raise RuntimeError(f"{n} choices ended so: {ends}")


@contextlib.contextmanager
def http_server(engine: rs.Engine) -> Generator[str]:
    """The HTTP API of an engine in a thread; its address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = create_app(engine.client, settings=HttpConfig(served_names=("soak",)))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


def _memory_mb(engine: rs.Engine) -> dict[str, float]:
    pids = {**engine.supervisor.pids, "this": psutil.Process().pid}
    return {name: psutil.Process(pid).memory_info().rss / 2**20 for name, pid in pids.items()}


def soak(model: str, count: int, *, seed: int = 0, concurrency: int = 24) -> Report:
    """Run `count` requests against an engine of their own."""
    with rs.Engine(model, **SETTINGS) as engine, http_server(engine) as url:
        it = Soak(engine, url, random.Random(seed))
        began = time.monotonic()
        asyncio.run(it.run(max(1, count // 5), concurrency))  # until buffers and pools have their size
        before = _memory_mb(engine)
        asyncio.run(it.run(count - max(1, count // 5), concurrency))
        report = it.report
        report.wall_s = time.monotonic() - began
        try:
            report.stats = stats = settled_stats(engine.client, 30)
        except RuntimeError as error:
            report.problems.append(str(error))
            return report
        if stats["pages_free"] + stats["pages_cached"] != stats["pages_total"] or stats["pages_locked"]:
            report.problems.append(f"pages are lost: {stats}")
        if stats["num_programs"] or stats["num_queued"] or stats["num_requests_in_flight"] or stats["num_leases"]:
            report.problems.append(f"something is still open: {stats}")
        report.growth_mb = {name: mb - before[name] for name, mb in _memory_mb(engine).items()}
        report.problems += [f"{name} has grown by {mb:.0f} MB" for name, mb in report.growth_mb.items() if mb > GROWTH_MB]
        return report


def main() -> int:
    """Print what came of it; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--concurrency", type=int, default=24)
    parser.add_argument("--model", default="", help="a model to use instead of the tiny random one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model
        if not model:
            from tests.support.tiny_model import write_tiny_checkpoint

            model = str(write_tiny_checkpoint(Path(folder) / "tiny"))
        report = soak(model, arguments.requests, seed=arguments.seed, concurrency=arguments.concurrency)
    lines = [f"{arguments.requests} requests in {report.wall_s:.1f} s"]
    lines += [f"  {name}: {count}" for name, count in sorted(report.outcomes.items())]
    lines += [f"  {name}: {mb:+.0f} MB" for name, mb in report.growth_mb.items()]
    lines += [f"PROBLEM {problem}" for problem in report.problems]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
