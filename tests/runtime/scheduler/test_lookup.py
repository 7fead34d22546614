"""Guesses at what follows: from a sequence's own text, as long as they pay, and at nobody else's cost."""

from __future__ import annotations

import math
import random
from array import array
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime.scheduler.lookup import (
    MAX_MATCH,
    MIN_MATCH,
    OTHERS_SHARE,
    PROMPTS_SHARE,
    Candidate,
    Guess,
    Record,
    continuation,
    guess,
    last_match,
    most_added_s,
)
from tests.runtime.scheduler.harness import Machine

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.sequence import Sequence


def run(*token_ids: int) -> array[int]:
    return array("i", token_ids)


def slow_match(tokens: list[int]) -> tuple[int, int]:
    for follows in range(len(tokens) - 1, MIN_MATCH - 1, -1):
        num_matched = 0
        while num_matched < min(MAX_MATCH, follows) and tokens[follows - num_matched - 1] == tokens[-num_matched - 1]:
            num_matched += 1
        if num_matched >= MIN_MATCH:
            return follows, num_matched
    return 0, 0


@settings(max_examples=500, deadline=None)
@given(tokens=st.lists(st.sampled_from([0, 1, 256, 257, 65_536, 16_777_216]), max_size=60))
def test_the_last_place_where_the_newest_tokens_occurred(tokens: list[int]) -> None:
    # Ids whose bytes look alike at every shift: a match across the border of two tokens is none.
    assert last_match(run(*tokens)) == slow_match(tokens)


def test_what_follows_is_repeated_where_it_runs_into_itself() -> None:
    tokens = run(9, 1, 2, 1, 2, 1)
    follows, num_matched = last_match(tokens)
    assert (follows, num_matched) == (4, 3)
    assert continuation(tokens, follows, 5) == [2, 1, 2, 1, 2]


def test_a_record_that_disappoints_is_trusted_less_and_one_that_holds_no_more_than_fully() -> None:
    good, bad = Record(), Record()
    for _ in range(20):
        good.num_matched = bad.num_matched = MIN_MATCH
        good.settle(accepted=True)
        bad.settle(accepted=False)
    assert next(good.chances(3)) == pytest.approx(3 / 4)
    assert next(bad.chances(3)) < 0.25
    assert list(islice(good.chances(3), 3)) == pytest.approx([3 / 4, 3 / 5, 3 / 6])


def test_what_is_no_guess_does_not_count() -> None:
    record = Record()
    record.settle(accepted=False)
    assert (record.expected, record.accepted) == (Record().expected, Record().accepted)


LOOP = run(*[1, 2, 3, 4] * 12)


def of(tokens: array[int], row_s: float = 1e-3, most: int = 16, record: Record | None = None) -> Candidate:
    return Candidate(tokens, record or Record(), most, row_s)


def lengths(found: list[Guess | None]) -> list[int]:
    return [len(one.token_ids) if one else 0 for one in found]


def test_a_guess_is_longer_where_a_step_is_dear_and_none_where_rows_are() -> None:
    alone = lengths(guess([of(LOOP)], 1, 20e-3, 64, math.inf))
    beside = lengths(guess([of(LOOP)], 16, 20e-3, 64, math.inf))
    assert alone == [16]
    assert 0 < beside[0] < 16
    assert lengths(guess([of(LOOP)], 16, 20e-3 * 0.5, 64, math.inf)) == [0]


def test_the_better_bet_goes_first_and_bounds_hold() -> None:
    short = run(7, 1, 2, 3, 8, 9, 1, 2, 3)
    assert lengths(guess([of(short), of(LOOP)], 2, 50e-3, 4, math.inf)) == [0, 4]
    assert lengths(guess([of(short), of(LOOP)], 2, 50e-3, 64, 3.5e-3)) == [0, 3]
    assert lengths(guess([of(LOOP, most=2), of(LOOP, most=0), of(LOOP, most=-1)], 3, 50e-3, 64, math.inf)) == [2, 0, 0]
    assert lengths(guess([of(LOOP)], 1, 50e-3, -3, math.inf)) == [0]
    assert guess([], 3, 50e-3, 64, math.inf) == []


def test_a_guess_is_what_followed() -> None:
    (found,) = guess([of(run(7, 1, 2, 3, 8, 9, 1, 2, 3), most=2)], 1, 1.0, 64, math.inf)
    assert found == Guess([8, 9], 3)


def test_each_group_has_its_own_part() -> None:
    short = run(7, 1, 2, 3, 8, 9, 1, 2, 3)
    loop, other = of(LOOP), Candidate(short, Record(), 16, 1e-3, group=1)
    assert lengths(guess([loop, other], 2, 50e-3, 64, 2.5e-3)) == [2, 2]


def test_costs_that_say_nothing_are_no_harm() -> None:
    assert lengths(guess([of(LOOP, row_s=0.0), of(LOOP, row_s=0.0)], 2, 10e-3, 64, math.inf)) == [16, 16]
    assert lengths(guess([of(LOOP, row_s=0.0)], 1, 0.0, 64, math.inf)) == [16]


def flat(decodes: int, prefill: int, pairs: float) -> float:
    return 7e-3


def by_row(decodes: int, prefill: int, pairs: float) -> float:
    return 7e-3 + 5e-4 * decodes


def slow_decodes(decodes: int, prefill: int, pairs: float) -> float:
    return 20e-3 if not prefill else 7e-3


@pytest.mark.parametrize("cost", [flat, by_row, slow_decodes])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_steps_cost(cost: Any, seed: int) -> None:
    source = random.Random(seed)
    noisy = Machine(512, vocabulary=2, prompt_lookup=True, cost=lambda *work: cost(*work) * source.uniform(0.95, 1.05))
    for number in range(12):
        noisy.add([number % 3] * (5 + 7 * number), max_tokens=60, tenant=str(number % 2))
    noisy.run_all()
    noisy.check_idle()


def test_nobody_loses_its_slot_to_a_guess() -> None:
    """Pages for one token of each come first, though a guess of a more entitled one would fit before the others are planned."""
    num_preempted = num_guessed = 0
    for num_pages in range(13, 30):
        for longer in range(4):
            machine = Machine(num_pages, page_size=4, vocabulary=1, prompt_lookup=True, growth_tokens=1)
            for number in range(4):
                namespace = (("salt", str(number)),)
                machine.add([0] * (8 + number * longer), max_tokens=4 * num_pages - 24, namespace=namespace)
            while machine.scheduler.has_work:
                running = [sequence for sequence in machine.scheduler._state.running if sequence.num_uncomputed == 1]
                needed = sum(machine.scheduler._pages.missing(sequence, sequence.num_tokens) for sequence in running)
                are_short = needed > machine.pool.num_available
                plan = machine.scheduler.schedule()
                assert plan is not None
                drafts = sum(chunk.sequence.num_draft for chunk in plan.chunks)
                assert are_short or not plan.preempted or not drafts
                num_preempted, num_guessed = num_preempted + len(plan.preempted), num_guessed + drafts
                machine.run(plan)
            machine.check_idle()
    assert num_preempted > 0
    assert num_guessed > 0


def test_forced_tokens_are_no_guess() -> None:
    machine = Machine(256, vocabulary=1, prompt_lookup=True)
    (sequence,) = decoding(machine, {})
    record = machine.scheduler._state.tracked[sequence].guesses
    record.num_matched = 9  # as the guess before, all of which was drawn, left it
    before = (record.expected, record.accepted)
    machine.scheduler.draft(sequence, [1, 1])
    machine.scheduler.reject_draft(sequence)
    assert (record.expected, record.accepted) == before


def test_a_search_that_finds_nothing_but_shifts_is_given_up() -> None:
    assert last_match(run(*[256] * 10_000, 1, 1, 1)) == (0, 0)


def test_others_and_a_target_bound_what_guesses_add() -> None:
    assert most_added_s(20e-3, 0.0, others_wait=False, prompts_wait=False) == math.inf
    assert most_added_s(20e-3, 0.0, others_wait=True, prompts_wait=True) == pytest.approx(OTHERS_SHARE * 20e-3)
    assert most_added_s(20e-3, 0.0, others_wait=False, prompts_wait=True) == pytest.approx(PROMPTS_SHARE * 20e-3)
    assert most_added_s(20e-3, 22e-3, others_wait=True, prompts_wait=False) == pytest.approx(2e-3)
    assert most_added_s(20e-3, 24e-3, others_wait=False, prompts_wait=True) == pytest.approx(PROMPTS_SHARE * 4e-3)
    assert most_added_s(20e-3, 10e-3, others_wait=False, prompts_wait=False) == 0.0


def decoding(machine: Machine, *fields: dict[str, Any]) -> list[Sequence]:
    """Sequences that say one token over and over, with their prompts computed."""
    sequences = [machine.add([0] * 40, max_tokens=200, **each) for each in fields]
    while any(sequence.num_output_tokens < 2 for sequence in sequences):
        machine.step()
    return sequences


def drafted(machine: Machine) -> dict[Sequence, int]:
    plan = machine.scheduler.schedule()
    assert plan is not None
    drafts = {chunk.sequence: chunk.sequence.num_draft for chunk in plan.chunks}
    machine.run(plan)
    return drafts


def test_one_that_repeats_itself_takes_few_steps() -> None:
    plain, quick = (Machine(vocabulary=1, prompt_lookup=on) for on in (False, True))
    for machine in (plain, quick):
        machine.add([0] * 40, max_tokens=100)
        machine.run_all()
        machine.check_idle()
    counters = quick.scheduler.counters
    assert counters.num_output_tokens == 100
    assert counters.num_steps < plain.scheduler.counters.num_steps / 4
    assert counters.num_draft_tokens == counters.num_accepted_draft_tokens > 80


def test_of_several_tenants_guesses_take_a_quarter_of_a_step() -> None:
    machine = Machine(256, vocabulary=1, prompt_lookup=True)
    decoding(machine, {"tenant": "a"}, {"tenant": "b"})
    assert 0 < sum(drafted(machine).values()) < 12
    machine = Machine(256, vocabulary=1, prompt_lookup=True)
    decoding(machine, {"tenant": "a"}, {"tenant": "a"})
    assert sum(drafted(machine).values()) >= 24


def test_a_lower_class_gets_no_guess_beside_a_higher_one() -> None:
    machine = Machine(256, vocabulary=1, prompt_lookup=True)
    high, low = decoding(machine, {"priority": "interactive"}, {"priority": "background"})
    drafts = drafted(machine)
    assert drafts[high] > 0
    assert drafts[low] == 0
    machine.scheduler.cancel(high)
    assert drafted(machine)[low] > 0


def test_another_tenants_class_takes_nobodys_guesses() -> None:
    machine = Machine(256, vocabulary=1, prompt_lookup=True)
    sequences = decoding(
        machine,
        {"tenant": "a", "priority": "interactive"},
        {"tenant": "b"},
        {"tenant": "c", "priority": "background"},
    )
    drafts = drafted(machine)
    assert [drafts[sequence] > 0 for sequence in sequences] == [True, True, False]


def test_the_background_guesses_little_for_whoever_may_come() -> None:
    machine = Machine(256, vocabulary=1, prompt_lookup=True)
    decoding(machine, {"priority": "background"}, {"priority": "background"})
    assert 0 < sum(drafted(machine).values()) < 12


def test_prompts_that_are_read_in_the_same_step_are_not_kept_waiting() -> None:
    machine = Machine(256, vocabulary=1, prompt_lookup=True)
    decoding(machine, {}, {})
    assert sum(drafted(machine).values()) >= 24
    machine.add(list(range(1, 400)), max_tokens=4)
    assert 0 < sum(drafted(machine).values()) < 20  # it waits
    assert 0 < sum(drafted(machine).values()) < 20  # it is being read


def test_output_that_never_repeats_is_not_slowed_down() -> None:
    machine = Machine(256, vocabulary=1_000_003, prompt_lookup=True)
    machine.add([1, 2, 3] * 12, max_tokens=60)
    machine.run_all()
    assert machine.scheduler.counters.num_draft_tokens <= 16
