"""Random arrivals, cancellations and rollbacks over tiny pools: every read sees the right KV, all end, nothing leaks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime.cache.check import check_cache
from tests.runtime.scheduler.harness import Machine, expected_output

PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=20)


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[int, list[int], dict[str, Any]]]:
    shared = draw(st.lists(PROMPTS, min_size=1, max_size=3))
    result = []
    for _ in range(draw(st.integers(1, 14))):
        prompt = [*draw(st.sampled_from(shared)), *draw(PROMPTS)]
        fields: dict[str, Any] = {
            "max_tokens": draw(st.integers(0, 12)),
            "tenant": (tenant := draw(st.sampled_from(["a", "b", "c"]))),
            "namespace": (("tenant", tenant),),
            "program": draw(st.integers(0, 3)),
            "priority": draw(st.sampled_from(["interactive", "standard", "background"])),
        }
        if draw(st.integers(0, 4)) == 0:
            fields["logprobs_from"] = draw(st.integers(1, len(prompt)))
        result.append((draw(st.integers(0, 12)), prompt, fields))
    return sorted(result, key=lambda arrival: arrival[0])


@pytest.mark.timeout(280)
@settings(max_examples=200, deadline=None)
@given(
    arrivals=arrivals(),
    page_size=st.sampled_from([1, 4, 16]),
    spare=st.integers(0, 40),
    cancels=st.dictionaries(st.integers(0, 30), st.integers(0, 13), max_size=4),
    cuts=st.dictionaries(st.integers(0, 30), st.tuples(st.integers(0, 13), st.integers(1, 8)), max_size=3),
    mode=st.sampled_from(["continuous", "continuous", "continuous", "dynamic", "static"]),
    prefix_cache=st.booleans(),
    budget=st.sampled_from([1, 5, 16, 64]),
    max_running=st.integers(1, 8),
    policy=st.sampled_from(["dlpm", "dlpm", "vtc", "lpm", "fcfs"]),
    quantum=st.sampled_from([4.0, 64.0, 1024.0]),
    # Of few tokens the same come again and again, so that many guesses at them are right.
    vocabulary=st.sampled_from([1, 2, 50]),
    prompt_lookup=st.booleans(),
)
def test_all_end_with_the_right_output(
    arrivals: list[tuple[int, list[int], dict[str, Any]]],
    page_size: int,
    spare: int,
    cancels: dict[int, int],
    cuts: dict[int, tuple[int, int]],
    mode: str,
    prefix_cache: bool,
    budget: int,
    max_running: int,
    policy: str,
    quantum: float,
    vocabulary: int,
    prompt_lookup: bool,
) -> None:
    longest = max(len(prompt) + fields["max_tokens"] for _, prompt, fields in arrivals)
    machine = Machine(
        -(-(longest + spare) // page_size),
        page_size,
        prefix_cache=prefix_cache,
        vocabulary=vocabulary,
        prompt_lookup=prompt_lookup,
        schedule=mode,
        max_batch_tokens=budget,
        max_running=max_running,
        policy=policy,
        quantum=quantum,
        level_unit=16.0,
        ageing_s=0.5,
        growth_tokens=4,
    )
    sequences, cancelled = [], set()
    pending = list(arrivals)
    number = 0
    while pending or machine.scheduler.has_work:
        while pending and pending[0][0] <= number:
            _, prompt, fields = pending.pop(0)
            sequences.append(machine.add(prompt, **fields))
        if number in cancels and cancels[number] < len(sequences):
            sequence = sequences[cancels[number]]
            if sequence not in machine.ends:
                cancelled.add(sequence)
            machine.scheduler.cancel(sequence)
        if number in cuts and cuts[number][0] < len(sequences):
            cut(machine, sequences[cuts[number][0]], cuts[number][1])
        if machine.step() is None:
            machine.now_s += 0.01
        check_cache(machine.cache, machine.pool)
        number += 1
        assert number < 20_000, "not done"
    machine.check_idle()
    for account in machine.scheduler.tenant_stats().values():
        assert account.num_running == account.num_waiting == account.num_waiting_uncached_tokens == 0
    for sequence in sequences:
        if sequence in cancelled:
            continue
        prompt, output = sequence.token_ids[: sequence.num_prompt_tokens], sequence.token_ids[sequence.num_prompt_tokens :]
        assert output == expected_output(prompt, sequence.max_tokens, sequence.namespace, vocabulary)
        assert 0 <= sequence.num_cached_tokens < sequence.num_prompt_tokens
        if sequence.logprobs_from >= 0:
            assert sequence.num_cached_tokens <= max(0, sequence.logprobs_from - 1)
        if not prefix_cache:
            assert sequence.num_cached_tokens == 0
    machine.cache.reset()
    assert machine.pool.num_free == machine.pool.num_pages


def cut(machine: Machine, sequence: Any, count: int) -> None:
    """Roll a sequence back by some output tokens; it draws the same again."""
    if sequence not in machine.scheduler._state.tracked:
        return
    machine.scheduler.truncate(sequence, max(sequence.num_prompt_tokens, sequence.num_tokens - count))
