"""Whatever the OpenAPI document allows or forbids, nothing makes the server fail."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from radixserve.http.app import create_app
from radixserve.http.config import HttpConfig
from tests.http.fake_engine import FakeClient


def answers() -> dict[str, Any]:
    """What the fake engine answers to queries."""
    return {
        "usage": {"tenants": {"": {}}},
        "tenant": {"tenant": ""},
        "health": {"status": "ok"},
        "stats": {},
        "tokenize": {"ids": [1, 2], "text": "x"},
        "detokenize": lambda body: {"texts": ["x" for _ in body["ids"]]} if body.get("separately") else {"text": "x"},
    }


@pytest.fixture(scope="module")
def schema():
    client = FakeClient(answers=answers())
    app = create_app(client, settings=HttpConfig(served_names=("tiny",), query_timeout_s=2.0))
    yield schemathesis.openapi.from_asgi("/openapi.json", app)
    client.close()


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_nothing_fails(schema, mode):
    """Every operation, with what its schemas allow and with what they do not: nothing but answers in form, and no 500."""
    seen = 0
    statuses: Counter[int] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode.is_negative and not operation.body:
            continue  # there is nothing that could be wrong with it
        seen += 1

        @settings(max_examples=10, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def fuzz(case):
            if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = "tiny"  # or nearly all would end with 404
            response = case.call()
            statuses[response.status_code] += 1
            assert response.status_code < 500, response.text
            if response.status_code >= 400:
                assert "error" in response.json()

        fuzz()
    assert seen == (7 if mode.is_negative else 15)
    assert statuses[400] > 10
    assert mode.is_negative or statuses[200] > 20
