from __future__ import annotations

import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from radixserve.http.engine_stats import flatten
from radixserve_lang.errors import QueryFailedError
from radixserve_tokenizer.protocol import Usage
from tests.http.fake_engine import Script, scripted
from tests.http.harness import CHAT

STATS = {
    "num_running": 3,
    "num_waiting": 2,
    "pages_total": 100,
    "pages_free": 40,
    "pages_cached": 35,
    "pages_locked": 25,
    "num_steps": 7,
    "num_batched_tokens": 70,
    "num_prompt_tokens": 1000,
    "num_prompt_tokens_computed": 400,
    "num_cached_tokens": 600,
    "num_output_tokens": 50,
    "num_preemptions": 1,
    "num_aborted": 4,
    "num_evicted_pages": 2,
    "tokenizer": {"num_programs": 5, "num_refused": 6},
}

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "a secret"}]}


def scrape(api):
    answer = api("/metrics")
    assert answer.status_code == 200
    samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return samples


MODEL = (("model_name", "tiny"),)


def test_engine_counters(api, fake):
    fake.answers["stats"] = STATS
    found = scrape(api)
    expected = {
        "radixserve:up": 1,
        "radixserve:num_requests_running": 3,
        "radixserve:num_requests_waiting": 2,
        "radixserve:kv_cache_usage_perc": 0.25,
        "radixserve:prefix_cache_queries_total": 1000,
        "radixserve:prefix_cache_hits_total": 600,
        "radixserve:num_preemptions_total": 1,
        "radixserve:prompt_tokens_total": 1000,
        "radixserve:prompt_tokens_computed_total": 400,
        "radixserve:generation_tokens_total": 50,
        "radixserve:requests_aborted_total": 4,
        "radixserve:programs_open": 5,
        "radixserve:programs_refused_total": 6,
    }
    assert {name: found[name, MODEL] for name in expected} == expected


def test_request_histograms(api, fake):
    fake.answers["stats"] = STATS
    fake.handler = scripted(Script(usage=Usage(prompt_tokens=10, output_tokens=3, queued_s=0.5, prefill_s=0.25, decode_s=0.5)))
    assert api(CHAT, BODY).status_code == 200
    assert api(CHAT, {**BODY, "stream": True}).status_code == 200
    found = scrape(api)
    for name in (
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "e2e_request_latency_seconds",
        "time_to_first_token_seconds",
        "time_per_output_token_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
    ):
        assert found[f"radixserve:{name}_count", MODEL] == 2, name
    assert found["radixserve:inter_token_latency_seconds_count", MODEL] == 2
    assert found["radixserve:request_queue_time_seconds_sum", MODEL] == 1.0
    assert found["radixserve:request_generation_tokens_sum", MODEL] == 6
    assert found["radixserve:request_success_total", (("finished_reason", "stop"), *MODEL)] == 2


def test_metrics_without_an_engine(api, fake):
    for answer in (None, QueryFailedError(503, "no server")):
        fake.answers["stats"] = answer
        found = scrape(api)
        assert found["radixserve:up", MODEL] == 0
        assert not any(name == "radixserve:num_requests_running" for name, _ in found)


def test_two_servers_do_not_share_metrics(api, fake):
    from radixserve.http.metrics import Metrics

    other = Metrics()
    assert api(CHAT, BODY).status_code == 200
    assert b'finished_reason="stop"' not in other.exposition(None)


@pytest.mark.parametrize(
    ("answer", "status", "word"),
    [
        ({"status": "ok", "num_running": 1}, 200, "ok"),
        ({"status": "loading"}, 503, "loading"),
        ({"status": "stuck", "idle_s": 30.0}, 503, "stuck"),
        ({"status": "runtime_down"}, 503, "runtime_down"),
        (QueryFailedError(503, "no server"), 503, "unreachable"),
        (None, 503, "engine_timeout"),
    ],
)
def test_health(api, fake, answer, status, word):
    fake.answers["health"] = answer
    response = api("/health")
    assert (response.status_code, response.json()["status"]) == (status, word)


def test_version_and_root(api):
    assert set(api("/version").json()) == {"version"}
    assert api("/").json()["docs"] == "/docs"


def test_access_log_has_neither_text_nor_key(api, caplog):
    with caplog.at_level(logging.DEBUG):
        api(f"{CHAT}?token=abc", BODY, authorization="Bearer sk-hidden")
        api("/made/up/path")
    lines = [record.getMessage() for record in caplog.records if record.name == "radixserve.http.access"]
    assert any(line.startswith(f"POST {CHAT} 200") for line in lines)
    text = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("radixserve"))
    for secret in ("secret", "sk-hidden", "token=abc", "made/up"):
        assert secret not in text


def test_flatten_keeps_the_outer_number():
    tenants = {"tenants": {"x": {"f": 5}}, "tenants_other": {"g": 6}}
    assert flatten({"a": 1, "b": {"a": 2, "c": 3, "d": "x", "e": True}, **tenants}) == {"a": 1.0, "c": 3.0}
