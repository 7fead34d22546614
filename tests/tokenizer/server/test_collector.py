"""Full collections that take long are not repeated over the same objects."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from radixserve_tokenizer.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def collection(collector: Collector, clock: Clock, seconds: float, generation: int = 2) -> None:
    collector.on_collection("start", {"generation": generation})
    clock.now += seconds
    collector.on_collection("stop", {"generation": generation})


@pytest.mark.usefixtures("unfrozen")
def test_what_survives_a_long_collection_is_left_alone_for_an_hour() -> None:
    clock = Clock()
    collector = Collector(clock)
    before = gc.get_freeze_count()
    collection(collector, clock, 0.001)
    collection(collector, clock, 5.0, generation=1)
    assert gc.get_freeze_count() == before
    collection(collector, clock, 0.1)
    first = gc.get_freeze_count()
    assert first > before
    kept = [[number] for number in range(1000)]
    clock.now += 1000
    collection(collector, clock, 0.1)
    assert gc.get_freeze_count() >= first + len(kept)
    clock.now += 3000
    collection(collector, clock, 0.1)
    assert gc.get_freeze_count() == 0, "all of it is looked at once more"
    collection(collector, clock, 0.1)
    assert gc.get_freeze_count() > 0
