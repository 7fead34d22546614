"""Requests that are made to hurt: each is answered within six seconds, and those who share the server hardly notice.

    python -m benchmarks.abuse [--model PATH] [--rounds 2] [--neighbours 8]

Neighbours stream all the time; the gaps between their tokens are noted first alone, then while the attacks go on, one after
another. Run it on a quiet machine.

Bars: no answer of 500 or above but 503, none later than 6 s; the neighbours' p99 gap under attack at most 1.5 times that before.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.hostile_schemas import HOSTILE_SCHEMAS
from radixserve.models import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LIMIT_S = 6.0
MAX_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class Attack:
    """One request."""

    name: str
    path: str
    body: bytes
    is_harmless: bool = False
    """It looks worse than it is here, and may be served."""


def _chat(**fields: Any) -> bytes:
    return json.dumps({"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}], **fields}).encode()


def _schema(schema: Any) -> bytes:
    return _chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


def _nested(open_: str, close: str, depth: int) -> bytes:
    inside = f"{open_ * depth}true{close * depth}"
    return _schema("@").replace(b'"@"', inside.encode())


def attacks() -> list[Attack]:
    """All of them."""
    found = [Attack(name, CHAT, _schema(schema)) for name, schema in HOSTILE_SCHEMAS.items()]
    found += [
        Attack("a catastrophic expression", CHAT, _chat(structured_outputs={"regex": "((a+)+)+$"}), is_harmless=True),
        Attack("an expression of 10 million", CHAT, _chat(structured_outputs={"regex": "((a{1,100}){1,100}){1,1000}"}), True),
        Attack("an expression of many parts", CHAT, _chat(structured_outputs={"regex": "(a|b|c){1,2000}" * 20}), True),
        Attack("100,000 choices", CHAT, _chat(structured_outputs={"choice": [f"c{i}" for i in range(100_000)]})),
        Attack("a grammar that goes in circles", CHAT, _chat(structured_outputs={"grammar": "root ::= root | root root"}), True),
        Attack("a schema 100,000 deep", CHAT, _nested('{"not":', "}", 100_000)),
        Attack("a schema 500 deep", CHAT, _nested('{"items":', "}", 500)),
        Attack("JSON 100,000 deep", CHAT, b"[" * 100_000),
        Attack("half a surrogate pair", CHAT, _schema({"const": "@"}).replace(b"@", rb"\ud83d")),
        Attack("NaN", CHAT, _chat(temperature=float("nan"))),
        Attack("NaN in a schema", CHAT, _schema({"minimum": float("nan")})),
        Attack("100,000 stop strings", CHAT, _chat(stop=[f"s{i}" for i in range(100_000)])),
        Attack("a prompt of 4 MB", TEXT, json.dumps({"model": "default", "prompt": "ab " * (4 << 20) + "x"}).encode()),
        Attack("1,000 prompts", TEXT, json.dumps({"model": "default", "prompt": ["a"] * 100_000, "max_tokens": 1}).encode()),
        Attack("a billion choices", TEXT, json.dumps({"model": "default", "prompt": "a", "n": 10**9}).encode()),
    ]
    return found


def send(http: httpx.Client, attack: Attack) -> tuple[int, float, str]:
    """Status, seconds, and the beginning of what was answered."""
    started_s = time.monotonic()
    answer = http.post(attack.path, content=attack.body, headers={"content-type": "application/json"})
    return answer.status_code, time.monotonic() - started_s, answer.text[:200]


class Neighbours:
    """Streams that go on until they are told to end, and the gaps between what arrives of each."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._over = threading.Event()
        self._gaps_s: list[float] = []
        self._threads = [threading.Thread(target=self._stream, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def take(self) -> list[float]:
        """The gaps since the last call."""
        gaps_s, self._gaps_s = self._gaps_s, []
        return gaps_s

    def end(self) -> None:
        """Stop them all."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _stream(self, number: int) -> None:
        body = {"model": "default", "prompt": f"{number} once upon", "max_tokens": 1000, "ignore_eos": True, "stream": True}
        with httpx.Client(base_url=self._url, timeout=120.0) as http:
            while not self._over.is_set():
                self._listen(http, body)

    def _listen(self, http: httpx.Client, body: dict[str, Any]) -> None:
        before_s = 0.0
        with http.stream("POST", TEXT, json=body) as answer:
            for line in answer.iter_lines():
                now_s = time.monotonic()
                if line.startswith("data: {"):
                    if before_s:
                        self._gaps_s.append(now_s - before_s)
                    before_s = now_s
                if self._over.is_set():
                    return


def p99(values: Sequence[float]) -> float:
    """Of the gaps; 0 where there are none."""
    return sorted(values)[int(0.99 * (len(values) - 1))] if values else 0.0


def problem(attack: Attack, status: int, seconds: float) -> str:
    """What is wrong with an answer; empty if nothing."""
    if status >= 500 and status != 503:
        return "a server error"
    if seconds > LIMIT_S:
        return f"later than {LIMIT_S:g} s"
    if status == 200 and not attack.is_harmless:
        return "served"
    return ""


@click.command()
@click.option("--model", default="smollm2-135m", show_default=True)
@click.option("--rounds", default=2, show_default=True, help="How often each attack is made.")
@click.option("--neighbours", default=8, show_default=True)
@click.option("--quiet-s", default=20.0, show_default=True, help="Seconds of streaming before the attacks.")
def main(model: str, rounds: int, neighbours: int, quiet_s: float) -> None:
    """Attack a server of its own."""
    from tests.integration.conftest import serving

    with serving(str(resolve(model)), "--kv-tokens", "32768") as server:
        streams = Neighbours(server.url, neighbours)
        try:
            time.sleep(3.0)
            streams.take()
            time.sleep(quiet_s)
            alone = p99(streams.take())
            answers = [(attack, *send(server.http, attack)) for _ in range(rounds) for attack in attacks()]
            beside = p99(streams.take())
        finally:
            streams.end()
    table = Table("attack", "status", "seconds", "problem")
    problems = 0
    for attack, status, seconds, _ in answers:
        wrong = problem(attack, status, seconds)
        problems += bool(wrong)
        table.add_row(attack.name, str(status), f"{seconds:.2f}", wrong)
    console = Console()
    console.print(table)
    ratio = beside / alone if alone else float("inf")
    console.print(
        f"neighbours' p99 gap: {1e3 * alone:.1f} ms alone, {1e3 * beside:.1f} ms under attack: {ratio:.2f} times (bar {MAX_RATIO})"
    )
    raise SystemExit(problems > 0 or ratio > MAX_RATIO)


if __name__ == "__main__":
    main()
