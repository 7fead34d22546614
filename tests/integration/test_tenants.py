"""Tenants through the real processes on a tiny random model: keys, limits, isolation, accounts that survive a restart."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import radixserve as rs
from radixserve.cli import main
from tests.integration.conftest import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from tests.integration.conftest import Server

PUBLIC = "You are a helpful assistant. Answer the question step by step, and then say it again in one word. " * 3
HEAD = 8
"""Tokens at most that all prompts of a role begin with; the very first one is the public prefix's too."""
SETTINGS = ("--dtype", "float32", "--threads", "1", "--kv-tokens", "8192", "--log-level", "warning")


@dataclass(frozen=True)
class Keys:
    """Two tenants, one that may ask three times a minute, and an admin."""

    file: Path
    search: str
    chat: str
    slow: str
    ops: str
    search_too: str
    """Another key of search's."""


def add(file: Path, name: str, *flags: str) -> str:
    result = CliRunner().invoke(main, ["tenant", "add", name, "--file", str(file), *flags])
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    file = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    (file.parent / "public.txt").write_text(PUBLIC)
    names = (add(file, "search", "--weight", "2"), add(file, "chat"), add(file, "slow", "--requests-per-minute", "3"))
    ops = add(file, "ops", "--admin")
    rotated = CliRunner().invoke(main, ["tenant", "rotate", "search", "--keep-old", "--file", str(file)])
    assert rotated.exit_code == 0, rotated.output
    keys = Keys(file, *names, ops, rotated.stdout.strip())
    with file.open("a") as text:
        text.write('\n[[public_prefix]]\nfile = "public.txt"\n')
    return keys


def flags(keys: Keys) -> tuple[str, ...]:
    return (*SETTINGS, "--tenants", str(keys.file), "--usage-db", str(keys.file.parent / "use.db"))


@pytest.fixture(scope="module")
def tenants(tiny_model: Path, keys: Keys) -> Iterator[Server]:
    with serving(str(tiny_model), *flags(keys)) as server:
        yield server


def ask(server: Server, key: str, *messages: tuple[str, str], **body: Any) -> httpx.Response:
    return server.http.post(
        "/v1/chat/completions",
        json={
            "model": "default",
            "messages": [{"role": role, "content": content} for role, content in messages],
            "max_tokens": 2,
            "temperature": 0,
            **body,
        },
        headers={"Authorization": f"Bearer {key}"} if key else {},
    )


def cached(server: Server, key: str, *messages: tuple[str, str], **body: Any) -> tuple[int, int]:
    """Cached and all prompt tokens."""
    answer = ask(server, key, *messages, **body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def usage(server: Server, key: str) -> dict[str, dict[str, Any]]:
    answer = server.http.get("/v1/usage", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    return {one.pop("tenant"): one for one in answer.json()["data"]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wrong", ["", "rs-wrong", "almost"])
def test_without_a_key_nothing_is_answered(tenants: Server, keys: Keys, wrong: str, stream: bool) -> None:
    key = keys.search[:-1] if wrong == "almost" else wrong
    answer = ask(tenants, key, ("user", "Hello?"), stream=stream)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert key not in answer.text or not key
    for path in ("/v1/models", "/v1/usage"):
        assert tenants.http.get(path, headers={"Authorization": f"Bearer {key}"} if key else {}).status_code == 401
    assert tenants.http.get("/v1/models", headers={"Authorization": f"Bearer {keys.search}"}).status_code == 200


def test_programs_need_a_key_too(tiny_model: Path, keys: Keys) -> None:
    @rs.function
    def hello(s: rs.State) -> str:
        s += rs.user("Hello?")
        return s.gen(max_tokens=2, temperature=0.0).value

    settings: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_tokens": 1024, "log_level": "warning"}
    with rs.Engine(str(tiny_model), tenants=keys.file, usage_db=":memory:", api_key=keys.chat, **settings) as engine:
        assert isinstance(hello.run(engine=engine).value, str)
        with rs.connect(engine.url, api_key="rs-wrong") as remote, pytest.raises(rs.ProgramRefusedError) as caught:
            hello.run(engine=remote)
        assert caught.value.status == 401
        with rs.connect(engine.url, api_key=keys.search) as remote:
            assert isinstance(hello.run(engine=remote).value, str)


def test_over_the_limit(tenants: Server, keys: Keys) -> None:
    answers = [ask(tenants, keys.slow, ("user", f"Question {i}?"), stream=i == 4) for i in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0", "0", "0"]
    for answer in answers:
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert re.fullmatch(r"(\d+m)?[\d.]+m?s", answer.headers["x-ratelimit-reset-requests"])
        assert "x-ratelimit-limit-tokens" not in answer.headers
    for answer in answers[3:]:
        assert 1 <= int(answer.headers["retry-after"]) <= 20
        assert answer.json()["error"]["type"] == "rate_limit_error"
    # Others are not held up by it.
    other = ask(tenants, keys.search, ("user", "Question 0?"))
    assert other.status_code == 200
    assert not any(name.startswith("x-ratelimit") for name in other.headers)


def test_what_is_kept_between_requests_is_the_tenants(tenants: Server, keys: Keys) -> None:
    def respond(key: str, **body: Any) -> httpx.Response:
        body = {"model": "default", "max_output_tokens": 2, "temperature": 0, **body}
        return tenants.http.post("/v1/responses", json=body, headers={"Authorization": f"Bearer {key}"})

    first = respond(keys.search, input="Remember me?").json()
    second = respond(keys.search_too, input="And now?", previous_response_id=first["id"])
    assert second.status_code == 200, second.text
    assert second.json()["usage"]["input_tokens_details"]["cached_tokens"] > HEAD
    for key, status in ((keys.search_too, 200), (keys.chat, 404), (keys.ops, 404), ("rs-wrong", 401)):
        path = f"/v1/responses/{first['id']}"
        assert tenants.http.get(path, headers={"Authorization": f"Bearer {key}"}).status_code == status
    assert respond(keys.chat, input="x", previous_response_id=first["id"]).status_code == 400
    assert respond("rs-wrong", input="x", previous_response_id=first["id"]).status_code == 401
    answer = ask(tenants, "rs-wrong", ("user", "Hello?"), radixserve={"program_id": "p", "parent": "q"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_tenants_share_no_prompt(tenants: Server, keys: Keys) -> None:
    prompt = ("user", "What is the capital of France? " * 8)
    assert cached(tenants, keys.search, prompt)[0] <= HEAD
    own, whole = cached(tenants, keys.search, prompt)
    assert own >= whole - 17
    assert cached(tenants, keys.chat, prompt)[0] <= HEAD
    assert cached(tenants, keys.chat, prompt)[0] == own
    # A salt narrows it within the tenant; the other tenant's salt of the same name is another one.
    assert cached(tenants, keys.search, prompt, cache_salt="x")[0] <= 1
    assert cached(tenants, keys.chat, prompt, cache_salt="x")[0] <= 1
    assert cached(tenants, keys.search, prompt, cache_salt="x")[0] == own


def test_10_a_salt_can_not_name_a_tenant(tenants: Server, keys: Keys) -> None:
    prompt = ("user", "Once upon a time there was a little engine. " * 6)
    assert cached(tenants, keys.search, prompt)[0] <= HEAD
    for salt in ("search", "\x01search", "/search", "('search',)", "public"):
        assert cached(tenants, keys.chat, prompt, cache_salt=salt)[0] <= 1


def test_everyone_hits_the_public_prefix_and_no_more(tenants: Server, keys: Keys) -> None:
    start = ("system", PUBLIC)
    first, whole = cached(tenants, keys.search, start, ("user", "Water boils at how many degrees, and ice melts at how many?"))
    assert first >= 3 * 20
    assert first < whole
    assert cached(tenants, keys.chat, start, ("user", "Water boils at how many degrees, and ice melts at how many?"))[0] == first
    again = cached(tenants, keys.chat, start, ("user", "Water boils at how many degrees, and ice melts at how many?"))
    assert again[0] > first


def test_metrics_name_tenants_to_those_who_may_know(tenants: Server, keys: Keys) -> None:
    ask(tenants, keys.chat, ("user", "Hello?"))
    open_to_all = tenants.http.get("/metrics").text
    assert "radixserve:num_requests_running" in open_to_all
    assert "radixserve:up{" in open_to_all
    assert 'tenant="' not in open_to_all
    own = tenants.http.get("/metrics", headers={"Authorization": f"Bearer {keys.chat}"}).text
    assert set(re.findall(r'tenant="([^"]*)"', own)) == {"chat"}
    everyone = tenants.http.get("/metrics", headers={"Authorization": f"Bearer {keys.ops}"}).text
    assert {"search", "chat", "slow"} <= set(re.findall(r'tenant="([^"]*)"', everyone))
    assert tenants.http.get("/metrics", headers={"Authorization": "Bearer rs-wrong"}).status_code == 401
    assert tenants.http.get("/health").status_code == 200


def test_accounts_add_up_and_survive_a_restart(tiny_model: Path, keys: Keys, tmp_path: Path) -> None:
    database = ("--usage-db", str(tmp_path / "use.db"))
    base = (*SETTINGS, "--tenants", str(keys.file), *database)

    def spend(server: Server) -> dict[str, tuple[int, int, int, int]]:
        spent: dict[str, tuple[int, int, int, int]] = {}
        for name, key, times in (("search", keys.search, 3), ("chat", keys.chat, 2)):
            answers = [ask(server, key, ("user", f"{name} {i // 2} " * 20), max_tokens=5) for i in range(times)]
            parts = [answer.json()["usage"] for answer in answers]
            spent[name] = (
                times,
                sum(part["prompt_tokens"] for part in parts),
                sum(part["prompt_tokens_details"]["cached_tokens"] for part in parts),
                sum(part["completion_tokens"] for part in parts),
            )
        return spent

    def sums(account: dict[str, Any]) -> tuple[int, int, int, int]:
        return account["requests"], account["input_tokens"], account["cached_tokens"], account["output_tokens"]

    with serving(str(tiny_model), *base) as server:
        first = spend(server)
        accounts = usage(server, keys.ops)
        assert {name: sums(accounts[name]) for name in first} == first
        assert all(accounts[name]["kv_token_s"] > 0 for name in first)
        assert all(accounts[name]["queue_s"] >= 0 for name in first)
        assert usage(server, keys.chat) == {"chat": accounts["chat"]}
        time.sleep(0.1)
    with serving(str(tiny_model), *base) as server:
        assert {name: sums(one) for name, one in usage(server, keys.ops).items() if name in first} == first
        second = spend(server)
        accounts = usage(server, keys.ops)
        for name in first:
            assert sums(accounts[name]) == tuple(a + b for a, b in zip(first[name], second[name], strict=True))


def test_a_rotated_key(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    old = add(file, "search")
    new = CliRunner().invoke(main, ["tenant", "rotate", "search", "--file", str(file)]).stdout.strip()
    with serving(str(tiny_model), *SETTINGS, "--tenants", str(file), "--usage-db", ":memory:") as server:
        assert ask(server, old, ("user", "Hello?")).status_code == 401
        assert ask(server, new, ("user", "Hello?")).status_code == 200
