"""No tenant ever has a prefix from the cache that another computed in private, whatever tenants, salts and names are called.

The cache is asked for what it shares through the only thing that tells: `cached_tokens`. A model remembers who computed
which prompt under which key, and what the operator published.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve_runtime.protocol import Base, Lease, Owner, Publish, ResetCache
from tests.support.engine_driver import Answer, Driver
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = tuple(b"%d," % number for number in range(512))
#: The same names for tenants and salts, those of the model and of the kinds of key among them.
NAMES = ("", "x", "tenant", "salt", "public", "(operator)", "tiny")
OWNERS = st.builds(Owner, tenant=st.sampled_from(NAMES), cache_salt=st.sampled_from(NAMES), program=st.integers(0, 3))
#: Prompts over three tokens, so that they often begin alike.
PROMPTS = st.lists(st.integers(11, 13), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@dataclass
class Known:
    """Prompts that each key may know of."""

    private: dict[tuple[str, str], list[list[int]]] = field(default_factory=dict)
    public: list[list[int]] = field(default_factory=list)

    def most(self, owner: Owner, prompt: list[int]) -> int:
        """The longest prefix that this owner may share."""
        seen = [*self.private.get((owner.tenant, owner.cache_salt), ()), *self.public]
        return max((common(prompt, other) for other in seen), default=0)


def common(one: list[int], other: list[int]) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    rounds=st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.just(Owner()), PROMPTS),
            st.tuples(st.just("lease"), OWNERS, PROMPTS),
            st.tuples(st.just("generate"), OWNERS, PROMPTS),
            st.tuples(st.just("generate"), OWNERS, PROMPTS),
            st.tuples(st.just("beside"), OWNERS, PROMPTS),
            st.tuples(st.just("reset"), st.just(Owner()), st.just([11])),
        ),
        max_size=24,
    ),
    kv_tokens=st.sampled_from([256, 2048]),
)
@pytest.mark.timeout(300)
def test_nothing_cached_comes_from_anothers_private_prompt(
    model: Path, rounds: list[tuple[str, Owner, list[int]]], kv_tokens: int
) -> None:
    driver = Driver(model, vocabulary=VOCABULARY, kv_tokens=kv_tokens)
    known = Known()
    running: list[tuple[int, Owner, list[int]]] = []
    for number, (kind, owner, prompt) in enumerate(rounds):
        if kind == "publish":
            driver.answers[-2 - number] = Answer()
            driver.core.handle(Publish(request_id=-2 - number, token_ids=tuple(prompt)))
            running.append((-2 - number, owner, prompt))
        elif kind == "lease":
            driver.core.handle(Lease(branch_id=number, base=Base(new_ids=tuple(prompt)), ttl_s=60.0, owner=owner))
        elif kind == "reset":
            driver.core.handle(ResetCache())
        else:
            running.append((driver.submit(prompt, owner=owner, max_tokens=2), owner, prompt))
        if kind != "beside":
            settle(driver, known, running)
    settle(driver, known, running)
    stats = driver.core.stats()
    assert stats.pages_free + stats.pages_cached + stats.pages_locked == stats.pages_total


def settle(driver: Driver, known: Known, running: list[tuple[int, Owner, list[int]]]) -> None:
    """Let all that runs end, and compare: requests that ran beside each other may share what either computed, within one key."""
    driver.run()
    asked = [(request_id, owner, prompt) for request_id, owner, prompt in running if request_id > 0]
    for request_id, _, prompt in running:
        if request_id < 0 and driver.answers[request_id].finished is not None:
            known.public.append(prompt)
    for request_id, owner, prompt in asked:
        beside = Known({}, known.public)
        for other_id, other, others in asked:
            key = (other.tenant, other.cache_salt)
            if other_id != request_id:
                beside.private.setdefault(key, []).append(others)
        finished = driver.answers[request_id].finished
        assert finished is not None
        assert finished.usage.cached_tokens <= max(known.most(owner, prompt), beside.most(owner, prompt))
    for request_id, owner, prompt in asked:
        full = prompt + driver.answers[request_id].token_ids
        known.private.setdefault((owner.tenant, owner.cache_salt), []).append(full)
    running.clear()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Owner(tenant="a", cache_salt="X"), Owner(tenant="X")),
        (Owner(tenant="a", cache_salt="X"), Owner(tenant="b", cache_salt="X")),
        (Owner(tenant="a", cache_salt="X"), Owner(tenant="a")),
        (Owner(tenant="a"), Owner(tenant="a", cache_salt="a")),
        (Owner(tenant=""), Owner(tenant="", cache_salt="tenant")),
        (Owner(tenant="operator"), Owner(tenant="(operator)")),
    ],
)
def test_a_salt_equal_to_another_name_shares_nothing(model: Path, first: Owner, second: Owner) -> None:
    driver = Driver(model, vocabulary=VOCABULARY)
    prompt = [20 + number % 300 for number in range(200)]
    for one, other in ((first, second), (second, first)):
        assert usage(driver, prompt, one) == usage(driver, prompt[::-1], other) == 0
        assert usage(driver, prompt, one) == usage(driver, prompt[::-1], other) == 199
        driver.core.handle(ResetCache())
        assert usage(driver, prompt, one) == usage(driver, prompt, other) == 0
        driver.core.handle(ResetCache())


def usage(driver: Driver, prompt: list[int], owner: Owner) -> int:
    finished = driver.generate(prompt, owner=owner, max_tokens=1).finished
    assert finished is not None
    return finished.usage.cached_tokens


def test_whoever_arrives_beside_anothers_prompt_does_not_wait_for_it(model: Path) -> None:
    driver = Driver(model, vocabulary=VOCABULARY, max_batch_tokens=64)
    prompt = [20 + number % 300 for number in range(200)]
    first = driver.submit(prompt, owner=Owner(tenant="a"), max_tokens=1)
    driver.step()
    second = driver.submit(prompt, owner=Owner(tenant="b"), max_tokens=1)
    driver.run()
    assert [driver.answers[number].finished.usage.cached_tokens for number in (first, second)] == [0, 0]  # type: ignore[union-attr]
