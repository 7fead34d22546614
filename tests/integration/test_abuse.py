"""Requests that are made to hurt, against real processes (benchmarks/abuse.py measures what neighbours notice)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from benchmarks.abuse import Attack, attacks, send
from tests.integration.conftest import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def target(tiny_model: Path) -> Iterator[Server]:
    with serving(str(tiny_model), "--threads", "1", "--kv-tokens", "4096", "--max-context", "256") as running:
        yield running


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_an_attack_is_answered_and_others_are_served(target: Server, attack: Attack) -> None:
    status, _, text = send(target.http, attack)
    assert status in ({200, 400, 413} if attack.is_harmless else {400, 413}), text
    assert target.complete(prompt="x", max_tokens=1)["choices"]


def test_whatever_the_document_allows_is_answered(target: Server) -> None:
    document = schemathesis.openapi.from_dict(target.http.get("/openapi.json").json())
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) > 5
    with httpx.Client(timeout=20.0) as http:
        for operation in operations:

            @given(case=operation.as_strategy())
            @settings(
                max_examples=8, deadline=None, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck)
            )
            def answered(case: Any) -> None:
                answer = http.request(**case.as_transport_kwargs(base_url=target.url))
                assert answer.status_code < 500, (answer.status_code, answer.text[:500])

            answered()
