"""Tenants as HTTP clients meet them: keys, limits in headers, accounts, metrics with names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from radixserve.http import tenant_stats
from radixserve.http.metrics import Metrics
from radixserve.http.ratelimits import duration, ratelimit_headers
from radixserve.http.responses import ErrorAnswer
from radixserve_lang.errors import QueryFailedError
from radixserve_tokenizer.protocol import Admitted, RateLimits, Refused
from tests.http.fake_engine import Script, play, refusing, scripted
from tests.http.harness import CHAT, TEXT

if TYPE_CHECKING:
    import httpx

BODIES = [(CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}), (TEXT, {"model": "tiny", "prompt": "x"})]
EVERY_WAY = [(path, {**body, "stream": stream}) for path, body in BODIES for stream in (False, True)]

LIMITS = RateLimits(
    limit_requests=60, remaining_requests=59, reset_requests_s=1.0, limit_tokens=9000, remaining_tokens=0, reset_tokens_s=360.0
)
HEADERS = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "59",
    "x-ratelimit-reset-requests": "1s",
    "x-ratelimit-limit-tokens": "9000",
    "x-ratelimit-remaining-tokens": "0",
    "x-ratelimit-reset-tokens": "6m0s",
}
ACCOUNT = {
    "requests": 3,
    "refused": 1,
    "input_tokens": 100,
    "cached_tokens": 40,
    "output_tokens": 20,
    "kv_token_s": 12.5,
    "queue_s": 0.25,
}


def limits_of(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("x-ratelimit-")}


@pytest.mark.parametrize(("path", "body"), EVERY_WAY)
def test_answers_carry_the_limits(api, fake, path, body):
    fake.handler = scripted(Script(), limits=LIMITS)
    answer = api(path, body, authorization="Bearer rs-key")
    assert answer.status_code == 200
    assert limits_of(answer) == HEADERS
    assert fake.last.opening["api_key"] == "rs-key"
    fake.handler = scripted(Script())
    assert limits_of(api(path, body)) == {}


@pytest.mark.parametrize(("path", "body"), EVERY_WAY)
def test_refusals_carry_the_limits_before_any_byte_of_a_stream(api, fake, path, body):
    fake.handler = refusing(429, "rate_limit_exceeded", "60 requests a minute", 0.2, LIMITS)
    answer = api(path, body)
    assert answer.status_code == 429
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["retry-after"] == "1"
    assert limits_of(answer) == HEADERS
    error = ErrorAnswer.model_validate_json(answer.content).error
    assert (error.type, error.code) == ("rate_limit_error", "rate_limit_exceeded")


def test_several_prompts_show_what_is_left_after_the_last(api, fake):
    def handler(channel, messages):
        left = 9 - channel.program
        channel.say(Admitted(program=channel.program, limits=RateLimits(limit_requests=10, remaining_requests=left)))
        for gen in channel.gens:
            play(channel, gen, Script())

    fake.handler = handler
    answer = api(TEXT, {"model": "tiny", "prompt": ["a", "b", "c"]})
    assert limits_of(answer)["x-ratelimit-remaining-requests"] == "7"


def test_a_refused_prompt_refuses_the_request_and_closes_the_others(api, fake):
    def handler(channel, messages):
        if channel.program == 0:
            channel.say(Admitted(program=0))
        else:
            channel.say(Refused(program=channel.program, status=429, code="rate_limit_exceeded", message="no", limits=LIMITS))

    fake.handler = handler
    answer = api(TEXT, {"model": "tiny", "prompt": ["a", "b"], "stream": True})
    assert answer.status_code == 429
    assert all(channel.closed.wait(5) for channel in fake.channels)


def test_openais_client_reads_them(live, fake):
    fake.handler = refusing(429, "rate_limit_exceeded", "later", 2.0, LIMITS)
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="rs-key", max_retries=0) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
        assert caught.value.response.headers["retry-after"] == "2"
        assert caught.value.code == "rate_limit_exceeded"
        fake.handler = refusing(401, "invalid_api_key", "no such key")
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])


def test_an_error_after_admission_has_no_length_or_limits_of_another_answer(api, fake):
    fake.handler = refusing(503, "overloaded", "full", 5.0)
    answer = api(*BODIES[0])
    assert (answer.status_code, answer.headers["retry-after"], limits_of(answer)) == (503, "5", {})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (0.9995, "1s"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.9991, "1m0s"),
        (60, "1m0s"),
        (90.2, "1m31s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (86_399.5, "24h0m0s"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@given(st.floats(0, 1e6))
def test_a_duration_is_never_too_short(seconds):
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)(ms|s))", duration(seconds))
    assert match is not None
    hours, minutes, rest, unit = match.groups()
    read = int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(rest) / (1000 if unit == "ms" else 1)
    assert -1e-6 <= read - seconds <= 1.001


def test_only_limits_that_exist_have_headers():
    assert ratelimit_headers(None) == {}
    assert ratelimit_headers(RateLimits()) == {}
    assert set(ratelimit_headers(RateLimits(limit_tokens=5, remaining_tokens=-3))) == {
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    }


# ---- accounts ------------------------------------------------------------------------------------------------------


def keyed(body):
    """An engine with tenants a and b, and the admin root."""
    match body["api_key"]:
        case "rs-root":
            return {"tenants": {"b": {**ACCOUNT, "requests": 9}, "a": ACCOUNT, "root": {}}}
        case "rs-a":
            return {"tenants": {"a": ACCOUNT}}
    raise QueryFailedError(401, "no such key")


@pytest.fixture
def tenants(fake):
    fake.answers["usage"] = keyed
    fake.answers["tenant"] = lambda body: {
        "tenant": "root" if body["api_key"] == "rs-root" else next(iter(keyed(body)["tenants"]))
    }
    fake.answers["stats"] = {"num_running": 5, "tenants": {"a": {"num_running": 2, "num_waiting": 1}, "b": {"num_running": 3}}}
    return fake


def test_usage(api, tenants):
    own = api("/v1/usage", authorization="Bearer rs-a").json()
    assert own == {"object": "list", "data": [{"tenant": "a", **ACCOUNT}]}
    everyone = api("/v1/usage", authorization="Bearer rs-root").json()
    assert [(one["tenant"], one["requests"]) for one in everyone["data"]] == [("a", 3), ("b", 9), ("root", 0)]
    for headers in ({}, {"authorization": "Bearer rs-wrong"}, {"authorization": "Basic x"}):
        answer = api("/v1/usage", **headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert ErrorAnswer.model_validate_json(answer.content).error.code == "invalid_api_key"


def test_usage_without_tenants(api, fake):
    fake.answers["usage"] = {"tenants": {"": ACCOUNT}}
    assert api("/v1/usage").json()["data"] == [{"tenant": "anonymous", **ACCOUNT}]
    fake.answers["usage"] = QueryFailedError(503, "gone")
    assert api("/v1/usage").status_code == 503


def test_models_need_a_key_where_there_are_tenants(api, tenants):
    for path in ("/v1/models", "/v1/models/tiny"):
        assert api(path).status_code == 401
        assert api(path, authorization="Bearer rs-wrong").status_code == 401
        assert api(path, authorization="Bearer rs-a").status_code == 200
    for path in ("/version", "/", "/openapi.json", "/docs"):
        assert api(path).status_code == 200


# ---- metrics -------------------------------------------------------------------------------------------------------


def samples(text):
    return {
        (sample.name.removeprefix("radixserve:"), sample.labels.get("tenant", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_show_the_tenants_that_the_key_may_see(api, tenants):
    found = samples(api("/metrics", authorization="Bearer rs-root").text)
    assert found["tenant_input_tokens_total", "a"] == 100
    assert found["tenant_cached_tokens_total", "a"] == 40
    assert found["tenant_output_tokens_total", "a"] == 20
    assert found["tenant_kv_token_seconds_total", "a"] == 12.5
    assert found["tenant_queue_seconds_total", "a"] == 0.25
    assert (found["tenant_requests_total", "a"], found["tenant_requests_total", "b"]) == (3, 9)
    assert found["tenant_refused_total", "a"] == 1
    assert (found["tenant_num_running", "a"], found["tenant_num_running", "b"]) == (2, 3)
    assert found["tenant_num_waiting", "a"] == 1
    assert ("tenant_num_waiting", "b") not in found
    assert ("tenant_num_running", "root") not in found
    assert found["num_requests_running", ""] == 5
    own = samples(api("/metrics", authorization="Bearer rs-a").text)
    assert {tenant for name, tenant in own if name.startswith("tenant_")} == {"a"}


def test_metrics_without_a_key_name_nobody(api, tenants):
    answer = api("/metrics")
    assert answer.status_code == 200
    found = samples(answer.text)
    assert found["num_requests_running", ""] == 5
    assert not any(name.startswith("tenant_") for name, _ in found)
    assert api("/metrics", authorization="Bearer rs-wrong").status_code == 401


def test_metrics_of_the_anonymous_tenant(api, fake):
    fake.answers["usage"] = {"tenants": {"": ACCOUNT}}
    fake.answers["stats"] = {"tenants": {"": {"num_running": 4}}}
    found = samples(api("/metrics").text)
    assert found["tenant_requests_total", "anonymous"] == 3
    assert found["tenant_num_running", "anonymous"] == 4


def test_health_needs_no_key(api, tenants):
    tenants.answers["health"] = {"status": "ok"}
    assert api("/health").status_code == 200


def test_the_number_of_series_is_bounded_and_no_counter_falls():
    metrics = Metrics()
    most = tenant_stats.MAX_TENANTS

    def scrape(count):
        accounts = {f"t{i:05}": {"requests": 1} for i in range(count)}
        return {
            tenant: value
            for (name, tenant), value in samples(metrics.exposition({}, accounts).decode()).items()
            if name == "tenant_requests_total"
        }

    first = scrape(most - 1)
    assert len(first) == most - 1
    second = scrape(most + 50)
    assert len(second) == most + 1
    assert second["(other)"] == 50
    assert all(second[name] >= value for name, value in first.items())
    assert len(scrape(3)) == 3
