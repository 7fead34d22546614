"""What the scheduler promises, each promise by an example."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve_runtime.scheduler.config import EmptySequenceError, SchedulerConfig, SequenceTooLongError
from radixserve_runtime.scheduler.sequence import Sequence, Status
from tests.runtime.scheduler.harness import Machine, expected_output, prompt

# ---- sharing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system_length", [1024, 1019])
def test_sixty_four_chats_compute_their_system_prompt_once(system_length: int) -> None:
    """The bar: prompt tokens computed <= 1,024 + 64 x (own tokens + 16), 16 at a time, cold cache."""
    machine = Machine(4096, 16)
    system, own, waiting = prompt(system_length, 0), 32, 64
    running: list[Sequence] = []
    while waiting or machine.scheduler.has_work:
        while waiting and len(running) < 16:
            waiting -= 1
            running.append(machine.add(system + prompt(own, 1 + waiting), max_tokens=32))
        machine.step()
        running = [sequence for sequence in running if sequence not in machine.ends]
    counters = machine.scheduler.counters
    assert counters.num_prompt_tokens_computed <= system_length + 64 * (own + 1)
    assert counters.num_cached_tokens + counters.num_prompt_tokens_computed == counters.num_prompt_tokens
    machine.check_idle()


def test_sixteen_equal_prompts_are_computed_once() -> None:
    machine = Machine(1024, 16)
    text = prompt(500, 0)
    sequences = [machine.add(text, max_tokens=4) for _ in range(16)]
    machine.run_all()
    assert machine.scheduler.counters.num_prompt_tokens_computed == 500 + 15
    assert [sequence.num_cached_tokens for sequence in sequences] == [0] + [499] * 15


def test_a_prefix_is_shared_at_several_levels() -> None:
    machine = Machine(1024, 16)
    root = prompt(300, 0)
    for group in range(4):
        for member in range(4):
            machine.add(root + prompt(100, 10 + group) + prompt(20, 100 + 10 * group + member), max_tokens=1)
    machine.run_all()
    assert machine.scheduler.counters.num_prompt_tokens_computed == 300 + 4 * 100 + 16 * 20


def test_followers_of_a_cancelled_leader_go_on() -> None:
    machine = Machine(1024, 16, max_batch_tokens=64)
    text = prompt(500, 0)
    leader = machine.add(text + [1])
    followers = [machine.add(text + [2 + number]) for number in range(4)]
    machine.step()
    machine.step()
    assert machine.scheduler.num_running == 1
    machine.scheduler.cancel(leader)
    machine.run_all()
    machine.check_idle()
    # The 128 tokens that the leader had computed were not lost.
    assert machine.scheduler.counters.num_prompt_tokens_computed == 500 + 4
    assert all(follower in machine.ends for follower in followers)


def test_namespaces_do_not_wait_for_each_other() -> None:
    machine = Machine(1024, 16)
    text = prompt(100, 0)
    machine.add(text, namespace=(("tenant", "x"),))
    other = machine.add(text, namespace=(("salt", "x"),))
    plan = machine.step()
    assert plan is not None
    assert len(plan.chunks) == 2
    machine.run_all()
    assert other.num_cached_tokens == 0


def test_without_prefix_cache_nobody_waits_for_a_leader() -> None:
    machine = Machine(1024, 16, prefix_cache=False, max_batch_tokens=1024)
    text = prompt(100, 0)
    for _ in range(4):
        machine.add(text)
    plan = machine.step()
    assert plan is not None
    assert len(plan.chunks) == 4
    machine.run_all()
    assert machine.scheduler.counters.num_cached_tokens == 0
    assert machine.pool.num_free == machine.pool.num_pages


def test_a_second_turn_finds_prompt_and_answer() -> None:
    machine = Machine(256, 16)
    first = machine.add(prompt(50, 0), max_tokens=9)
    machine.run_all()
    second = machine.add([*first.token_ids, *prompt(20, 1)], max_tokens=2)
    machine.run_all()
    assert second.num_cached_tokens == first.num_tokens - 1  # the last drawn token has no KV
    assert second.token_ids[-2:] == expected_output(second.token_ids[:-2], 2)


@pytest.mark.parametrize("length", [15, 16, 17, 32, 33])
def test_positions_with_wanted_logprobs_are_computed_again(length: int) -> None:
    machine = Machine(64, 16)
    for start, cached in ((1, 0), (length // 2, length // 2 - 1), (-1, length - 1)):
        machine.add(prompt(length, 0), max_tokens=1)
        machine.run_all()
        again = machine.add(prompt(length, 0), max_tokens=1, logprobs_from=start)
        machine.run_all()
        assert again.num_cached_tokens == cached


def test_the_options_of_a_score_share_their_branch() -> None:
    machine = Machine(256, 16)
    branch = prompt(200, 0)
    options = [machine.add([*branch, *prompt(3, number)], max_tokens=0, logprobs_from=200) for number in range(1, 9)]
    assert machine.run_all() == 2
    assert machine.scheduler.counters.num_prompt_tokens_computed == 203 + 7 * 4
    assert all(option.num_output_tokens == 0 for option in options)


# ---- pressure ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 16])
def test_thirty_prompts_of_half_a_pool_all_end(page_size: int) -> None:
    """Public bug report 8: a pool for about 3 requests, 30 at once, decoding to 64, some aborted."""
    machine = Machine(512 // page_size, page_size)
    sequences = [machine.add(prompt(256, number), max_tokens=64) for number in range(30)]
    for number in range(0, 30, 7):
        machine.step()
        machine.scheduler.cancel(sequences[number])
    machine.run_all()
    machine.check_idle()
    for number, sequence in enumerate(sequences):
        if number % 7:
            assert sequence.token_ids[256:] == expected_output(sequence.token_ids[:256], 64)


def test_preemption_takes_the_lowest_class_then_the_latest() -> None:
    machine = Machine(12, 4, growth_tokens=1)
    kinds = ["background", "interactive", "standard", "standard"]
    sequences = [machine.add(prompt(8, number), 30, priority=kind) for number, kind in enumerate(kinds)]
    preempted: list[Sequence] = []
    while machine.scheduler.has_work:
        plan = machine.step()
        assert plan is not None
        preempted.extend(plan.preempted)
    assert preempted[:2] == [sequences[0], sequences[3]]
    assert sequences[1].num_preemptions == 0
    for sequence in sequences:
        assert sequence.token_ids[8:] == expected_output(sequence.token_ids[:8], 30)
    machine.check_idle()


def test_a_preempted_sequence_resumes_from_the_tree_and_its_output_stays() -> None:
    machine = Machine(16, 4, growth_tokens=1)
    first, second = (machine.add(prompt(20, number), max_tokens=20) for number in range(2))
    machine.run_all()
    assert (first.num_preemptions, second.num_preemptions) == (0, 1)
    assert second.num_cached_tokens == 0
    assert second.token_ids[20:] == expected_output(second.token_ids[:20], 20)
    assert machine.scheduler.counters.num_batched_tokens < 2 * 39 + 30


@pytest.mark.parametrize("growth_tokens", [1, 64])
def test_pressure_is_answered_by_admitting_later(growth_tokens: int) -> None:
    """Preemption teaches admission to keep pages back: computing again stays a small part."""
    machine = Machine(64, 16, growth_tokens=growth_tokens)
    for number in range(40):
        machine.add(prompt(100, number), max_tokens=200)
    machine.run_all()
    counters = machine.scheduler.counters
    assert counters.num_preemptions > 0
    assert counters.num_batched_tokens <= 1.25 * 40 * 299


def test_an_entitled_prefill_is_not_starved_by_decodes() -> None:
    """Prefill of one token a step beside decodes of a lower class that would take every page."""
    machine = Machine(12, 4, growth_tokens=1, min_chunk_tokens=1, itl_target_ms=0.001)
    background = [machine.add(prompt(4, number), 28, priority="background") for number in range(2)]
    for _ in range(3):
        machine.step()
    urgent = machine.add(prompt(30, 9), 4, priority="interactive")
    idle = most_idle = 0
    while urgent.first_token_s < 0:
        plan = machine.step()
        assert plan is not None
        idle = 0 if any(chunk.sequence is urgent for chunk in plan.chunks) else idle + 1
        most_idle = max(most_idle, idle)
    assert most_idle <= 1
    assert urgent.num_preemptions == 0
    assert sum(sequence.num_preemptions for sequence in background) > 0
    machine.run_all()
    machine.check_idle()


def test_a_copy_that_finds_no_page_is_not_needed_once_the_tree_lets_go() -> None:
    """The whole pool holds the sequence's own cached prefix, all but its last token."""
    machine = Machine(4, 4)
    for _ in range(2):
        machine.add(prompt(16, 0), max_tokens=1)
        machine.run_all()
    machine.check_idle()


def test_a_sequence_that_can_never_fit_is_refused_when_added() -> None:
    machine = Machine(4, 4)
    with pytest.raises(SequenceTooLongError, match="need KV for 17 tokens and the pool holds 16"):
        machine.add(prompt(10, 0), max_tokens=8)
    with pytest.raises(EmptySequenceError):
        machine.add([])
    assert not machine.scheduler.has_work
    exact = machine.add(prompt(10, 0), max_tokens=7)
    machine.run_all()
    assert exact.num_output_tokens == 7


def test_a_sequence_as_large_as_the_pool_runs_beside_a_full_cache() -> None:
    machine = Machine(8, 4)
    for number in range(8):
        machine.add([7, 7, *prompt(8, number)], max_tokens=3)
    machine.run_all()
    whole = machine.add([7, 7, 7, *prompt(20, 99)], max_tokens=10)
    machine.run_all()
    assert whole.token_ids[23:] == expected_output(whole.token_ids[:23], 10)
    machine.check_idle()


# ---- ends --------------------------------------------------------------------------------------------------------


def test_cancel_works_in_any_state_and_twice() -> None:
    machine = Machine(64, 16, max_running=1, max_batch_tokens=32)
    running, waiting = machine.add(prompt(100, 0)), machine.add(prompt(100, 1))
    machine.step()
    for sequence in (waiting, running, running):
        machine.scheduler.cancel(sequence)
        assert sequence.status is Status.FINISHED
        assert sequence.pages == []
    machine.check_idle()
    assert machine.pool.num_cached == 2
    assert machine.scheduler.counters.num_aborted == 2
    assert machine.scheduler.schedule() is None


def test_a_sequence_cancelled_during_its_step_is_passed_over() -> None:
    machine = Machine(64, 16)
    kept, dropped = machine.add(prompt(40, 0)), machine.add(prompt(40, 1))
    plan = machine.scheduler.schedule()
    assert plan is not None
    machine.scheduler.cancel(dropped)
    machine.scheduler.complete(plan, 0.01)
    assert (kept.num_computed, dropped.num_computed) == (40, 0)
    assert machine.scheduler.counters.num_batched_tokens == 40


def test_a_step_may_be_completed_in_halves() -> None:
    """The engine looks for the culprit of a failed forward by running parts of a plan."""
    machine = Machine(64, 16)
    for number in range(4):
        machine.add(prompt(20, number))
    plan = machine.scheduler.schedule()
    assert plan is not None
    for half in (plan.chunks[:2], plan.chunks[2:]):
        machine.run(type(plan)(half))
    machine.run_all()
    machine.check_idle()


def test_truncate_rolls_kv_back() -> None:
    machine = Machine(64, 4)
    sequence = machine.add(prompt(10, 0), max_tokens=12)
    for _ in range(9):
        machine.step()
    assert sequence.num_output_tokens == 9
    machine.scheduler.truncate(sequence, 13)
    assert (sequence.num_tokens, sequence.num_computed, len(sequence.pages)) == (13, 13, 4)
    machine.scheduler.append_token(sequence, 999)
    machine.run_all()
    assert sequence.token_ids[14:] == expected_output(sequence.token_ids[:14], 8)
    machine.check_idle()
    with pytest.raises(ValueError, match="can't be cut to 0"):
        machine.scheduler.truncate(sequence, 0)


def test_a_cut_into_what_was_published_spoils_nothing() -> None:
    machine = Machine(64, 4)
    text = prompt(10, 0)
    sequence = machine.add(text, max_tokens=4)
    machine.step()
    machine.scheduler.truncate(sequence, 7)
    assert sequence.lock is not None
    assert sequence.lock.num_tokens == 7
    for token in (901, 902, 903, 904, 905):
        machine.scheduler.append_token(sequence, token)
    sequence.max_tokens = 8
    machine.run_all()
    for continuation in ([*text, 904, 905, 1], [*text[:7], 901, 902, 903, 904, 905, 1], [*text, 1]):
        machine.add(continuation, max_tokens=2)
        machine.run_all()
    machine.check_idle()


def test_times_and_counts_are_kept() -> None:
    machine = Machine(64, 16, cost=lambda decodes, prefill, pairs: 0.5)
    sequence = machine.add(prompt(20, 0), max_tokens=3)
    assert machine.run_all() == 3
    assert (sequence.arrival_s, sequence.first_scheduled_s, sequence.first_token_s) == (1.0, 1.0, 1.5)
    counters = machine.scheduler.counters
    assert (counters.num_steps, counters.num_batched_tokens, counters.num_output_tokens) == (3, 22, 3)


# ---- order -------------------------------------------------------------------------------------------------------


def finished_order(machine: Machine, specs: list[dict[str, Any]]) -> list[int]:
    sequences = [machine.add(max_tokens=1, **spec) for spec in specs]
    machine.run_all()
    return [sequences.index(sequence) for sequence in machine.order if sequence in sequences]


def test_the_longest_cached_prefix_goes_first_and_fcfs_does_not() -> None:
    for policy, expected in (("lpm", [1, 0, 2]), ("fcfs", [0, 1, 2])):
        machine = Machine(64, 16, max_running=1, policy=policy)
        known = prompt(64, 0)
        machine.add(known, max_tokens=1)
        machine.run_all()
        specs = [{"tokens": prompt(64, 1)}, {"tokens": [*known, 5]}, {"tokens": prompt(64, 2)}]
        assert finished_order(machine, specs) == expected


def test_classes_go_first_and_age() -> None:
    machine = Machine(64, 16, max_running=1)
    order = finished_order(
        machine, [{"tokens": prompt(8, n), "priority": p} for n, p in enumerate(["background", "standard", "interactive"])]
    )
    assert order == [2, 1, 0]
    aged = machine.add(prompt(8, 10), max_tokens=1, priority="background")
    machine.now_s += 25.0
    fresh = machine.add(prompt(8, 11), max_tokens=1, priority="interactive")
    machine.run_all()
    assert machine.order.index(aged) < machine.order.index(fresh)


def test_a_sequence_without_prefix_is_not_passed_over_for_ever() -> None:
    machine = Machine(256, 16, max_running=1, ageing_s=1.0)
    known = prompt(64, 0)
    machine.add(known, max_tokens=1)
    machine.run_all()
    stranger = machine.add(prompt(64, 1), max_tokens=4)
    for number in range(200):
        machine.add([*known, number], max_tokens=4)
        machine.step()
        if stranger in machine.ends:
            break
    assert stranger in machine.ends
    assert machine.ends[stranger] - stranger.arrival_s < 1.5


def test_more_slots_than_budget_is_cut_to_the_budget() -> None:
    machine = Machine(256, 16, max_running=64, max_batch_tokens=8)
    for number in range(30):
        machine.add(prompt(5, number), max_tokens=8)
    machine.run_all()
    machine.check_idle()


@pytest.mark.parametrize(
    ("field", "value"), [("max_running", 0), ("max_batch_tokens", 0), ("mixed_step_factor", 1.0), ("itl_target_ms", -1.0)]
)
def test_settings_that_cannot_work_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        SchedulerConfig(**{field: value})
