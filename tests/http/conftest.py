from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.http.config import HttpConfig
from tests.http.fake_engine import FakeClient
from tests.http.harness import running, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from tests.http.harness import Live


@pytest.fixture
def fake() -> Iterator[FakeClient]:
    client = FakeClient()
    yield client
    client.close()


@pytest.fixture
def api(fake: FakeClient) -> Iterator[Callable[..., httpx.Response]]:
    """Call the app in this process: `api(path, body, **headers)`, or `api(path)` for a GET."""
    with serving(fake) as call:
        yield call


@pytest.fixture
def live(fake: FakeClient) -> Iterator[Live]:
    """A real server on loopback."""
    with running(fake, HttpConfig(port=0, served_names=("tiny",), drain_timeout_s=1.0)) as server:
        yield server
