"""A queue of four and two hundred clients at once: each is answered, well-formed and once, and the counts agree."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.integration.conftest import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import Server

NUM_CLIENTS = 200


@pytest.fixture(scope="module")
def small_queue(tiny_model: Path) -> Iterator[Server]:
    with serving(str(tiny_model), "--max-queued", "4", "--threads", "1", "--kv-tokens", "8192", "--max-running", "8") as running:
        yield running


def body(number: int, *, streamed: bool, chat: bool) -> dict[str, Any]:
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": f"{number}?"}]} if chat else {"prompt": f"{number}?"}
    return {"model": "default", "max_tokens": 4, "ignore_eos": True, "stream": streamed, **prompt}


async def ask(http: httpx.AsyncClient, number: int, *, streamed: bool) -> int:
    """The status of one request, after all that its form promises has been checked."""
    chat = number % 2 == 0
    path = "/v1/chat/completions" if chat else "/v1/completions"
    answer = await http.post(path, json=body(number, streamed=streamed, chat=chat))
    if answer.status_code != 200:
        # Refused before any event: an ordinary answer with a JSON body, whatever was asked for.
        assert answer.status_code in (429, 503), answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["code"] == "overloaded"
        assert int(answer.headers["retry-after"]) >= 1
    elif streamed:
        lines = [line[6:] for line in answer.text.splitlines() if line]
        assert lines[-1] == "[DONE]"
        ends = [choice["finish_reason"] for line in lines[:-1] for choice in json.loads(line)["choices"]]
        assert ends[-1] == "length"
        assert not any(ends[:-1])
    else:
        assert answer.json()["usage"]["completion_tokens"] == 4
    return answer.status_code


async def burst(url: str, kinds: list[bool]) -> Counter[int]:
    limits = httpx.Limits(max_connections=NUM_CLIENTS, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60.0) as http:
        return Counter(await asyncio.gather(*(ask(http, number, streamed=kind) for number, kind in enumerate(kinds))))


@pytest.mark.parametrize("kinds", [[False], [True], [True, False, False]], ids=["whole", "streamed", "mixed"])
def test_24_every_client_of_a_burst_is_answered(small_queue: Server, kinds: list[bool]) -> None:
    names = ("request_success_total", "programs_refused_total")
    before = [total(small_queue, name) for name in names]
    found = asyncio.run(burst(small_queue.url, [kinds[number % len(kinds)] for number in range(NUM_CLIENTS)]))
    assert found.total() == NUM_CLIENTS
    assert found[200] >= 4
    assert found[503] > 0
    served, refused = (total(small_queue, name) - then for name, then in zip(names, before, strict=True))
    assert (served, refused) == (found[200], found[503])
    # Nothing is left behind, and whoever comes next is served.
    assert small_queue.complete(prompt="next", max_tokens=2)["choices"][0]["finish_reason"]
    deadline = time.monotonic() + 5
    while (health := small_queue.http.get("/health").json())["num_waiting"] and time.monotonic() < deadline:
        time.sleep(0.1)  # the runtime's counters travel with its heartbeat
    assert (health["status"], health["num_running"], health["num_waiting"]) == ("ok", 0, 0)
    assert small_queue.metric("programs_open") == 0


def total(server: Server, name: str) -> float:
    """A counter over all of its labels."""
    lines = server.http.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"radixserve:{name}{{"))
