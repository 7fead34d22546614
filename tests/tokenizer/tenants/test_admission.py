"""Who gets in: keys, classes, buckets and queues, all known before anything else of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from tests.tokenizer.programs.harness import World, append, config, encode, gen, says
from tests.tokenizer.tenants.people import answer_all, ask, key, tenant, world

if TYPE_CHECKING:
    from radixserve_tokenizer.protocol import Priority


def first_answer(it: World, program: int) -> wire.Event:
    return next(event for event in it.seen if getattr(event, "program", None) == program)


# ---- identity -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", ["", "wrong", "a", "key of b"])
def test_without_a_known_key_nobody_gets_in(shown: str, caplog: pytest.LogCaptureFixture) -> None:
    it = world(tenant("a"))
    caplog.set_level("DEBUG")
    it.send(wire.Open(program=1, api_key=shown), append(0, "a"), gen(1))
    refused = it.one(wire.Refused)
    assert (refused.status, refused.code, refused.limits) == (401, "invalid_api_key", None)
    assert not it.of(wire.Failed), "what is sent for a refused program is ignored"
    assert not it.sent(rt.Generate)
    if len(shown) > 1:
        assert shown not in str(it.seen)
        assert shown not in caplog.text


def test_the_key_alone_names_the_tenant_whatever_the_salt_says() -> None:
    it = world(tenant("a"), tenant("b"), hold=False)
    it.send(*ask(1, "a", cache_salt="b"), *ask(2, "b"), *ask(3, "b", cache_salt="a"))
    owners = [(m.owner.tenant, m.owner.cache_salt) for m in it.sent(rt.Generate)]
    assert owners == [("a", "b"), ("b", ""), ("b", "a")]


def test_scorings_and_leases_have_an_owner_too() -> None:
    it = world(tenant("a"), hold=False)
    it.send(wire.Open(program=1, api_key=key("a")), append(0, "hello"))
    it.send(wire.Select(program=1, op=1, branch=0, var=0, options=("A", "B")), wire.Lease(program=1, op=2, branch=0, ttl_s=1.0))
    assert it.sent(rt.Score)[0].owner.tenant == "a"
    assert it.sent(rt.Lease)[0].owner == it.sent(rt.Score)[0].owner


@pytest.mark.parametrize(
    ("allowed", "asked", "got"),
    [
        (("standard", "background"), "interactive", "standard"),
        (("background",), "interactive", "background"),
        (("background",), "standard", "background"),
        (("interactive", "background"), "standard", "background"),
        (("interactive",), "standard", "interactive"),
        (("interactive", "standard", "background"), "interactive", "interactive"),
    ],
)
def test_classes_are_kept_to(allowed: tuple[str, ...], asked: Priority, got: Priority) -> None:
    it = world(tenant("a", classes=allowed), hold=False).send(*ask(1, "a", priority=asked))
    assert it.sent(rt.Generate)[0].owner.priority == got


# ---- requests and tokens a minute -----------------------------------------------------------------------------------


def test_requests_a_minute() -> None:
    it = world(tenant("a", requests_per_minute=2), tenant("b"), hold=False)
    it.send(*ask(1, "a"), *ask(2, "a"), *ask(3, "a"), *ask(4, "b"))
    assert [event.program for event in it.of(wire.Admitted)] == [1, 2, 4]
    limits = it.of(wire.Admitted)[1].limits
    assert limits == wire.RateLimits(limit_requests=2, remaining_requests=0, reset_requests_s=60.0)
    assert it.of(wire.Admitted)[2].limits is None
    refused = it.one(wire.Refused)
    assert (refused.status, refused.code, refused.retry_after_s) == (429, "rate_limit_exceeded", pytest.approx(30.0))
    assert refused.limits == limits
    it.now += 29.9
    assert it.send(*ask(5, "a")).of(wire.Refused)[-1].program == 5
    it.now += 0.1
    assert it.send(*ask(6, "a")).of(wire.Admitted)[-1].program == 6


def test_tokens_a_minute_see_the_prompt_and_are_corrected_at_the_end() -> None:
    it = world(tenant("a", tokens_per_minute=60))
    it.send(*ask(1, "a", "x" * 20, max_tokens=30))
    limits = it.one(wire.Admitted).limits
    assert limits is not None
    assert (limits.limit_tokens, limits.remaining_tokens, limits.reset_tokens_s) == (60, 10, pytest.approx(50.0))
    refused = it.send(*ask(2, "a", "x" * 10, max_tokens=5)).one(wire.Refused)
    assert (refused.status, refused.retry_after_s) == (429, pytest.approx(5.0))
    assert isinstance(first_answer(it, 2), wire.Refused)
    it.runtime.scripts.append(says("okay"))
    answer_all(it)
    done = it.one(wire.Done)
    used = done.usage.prompt_tokens + done.usage.output_tokens
    it.send(*ask(3, "a", "x", max_tokens=0))
    limits = it.of(wire.Admitted)[-1].limits
    assert limits is not None
    assert limits.remaining_tokens == 60 - used - 1


def test_what_a_bucket_cant_hold_needs_it_to_be_full() -> None:
    it = world(tenant("a", tokens_per_minute=60), hold=False)
    it.send(*ask(1, "a", "x", max_tokens=9))
    refused = it.send(*ask(2, "a", "x" * 200)).one(wire.Refused)
    it.now += refused.retry_after_s
    it.send(*ask(3, "a", "x" * 200))
    assert it.one(wire.Done, program=3)
    assert it.send(*ask(4, "a", "x")).of(wire.Refused)[-1].retry_after_s > 60


def test_a_fork_counts_all_its_generations() -> None:
    it = world(tenant("a", tokens_per_minute=100))
    fork = wire.Fork(program=1, op=1, branch=0, first=1, count=4)
    it.send(
        wire.Open(program=1, api_key=key("a")),
        append(0, "x" * 10),
        fork,
        *(gen(2 + n, branch=1 + n, max_tokens=5) for n in range(4)),
    )
    limits = it.one(wire.Admitted).limits
    assert limits is not None
    assert limits.remaining_tokens == 100 - 4 * 15


def test_a_program_without_a_generation_needs_no_tokens_but_not_in_debt() -> None:
    it = world(tenant("a", tokens_per_minute=60), hold=False)
    it.send(wire.Open(program=1, api_key=key("a")))
    assert it.one(wire.Admitted).program == 1
    it.runtime.scripts.append(says("x" * 150))
    it.send(append(0, "x" * 40), gen(1))
    assert it.one(wire.Done)
    assert it.send(wire.Open(program=2, api_key=key("a"))).one(wire.Refused).status == 429


def test_in_debt_an_admitted_programs_generations_wait_and_are_not_refused() -> None:
    it = world(tenant("a", tokens_per_minute=60), hold=False)
    it.runtime.scripts.append(says("x" * 99))
    it.send(wire.Open(program=1, api_key=key("a")), append(0, "x" * 20), gen(1, max_tokens=20), gen(2, max_tokens=5))
    assert [done.op for done in it.of(wire.Done)] == [1]
    assert it.core.services.slots.num_held == 1
    it.now += 59.9
    it.send(wire.Ping())
    assert len(it.of(wire.Done)) == 1
    it.now += 0.2
    it.send(wire.Ping())
    assert it.one(wire.Done, op=2).usage.queued_s == pytest.approx(60.1)


@pytest.mark.parametrize("end", ["cancel", "close", "sampling", "skip", "gone"])
def test_what_was_not_used_is_put_back_however_it_ends(end: str) -> None:
    it = world(tenant("a", tokens_per_minute=1000))
    bad = {"temperature": 9.0} if end in ("sampling", "skip") else {}
    it.send(wire.Open(program=1, api_key=key("a")), append(0, "x" * 100), gen(1, max_tokens=500, **bad), gen(2, max_tokens=300))
    if end == "cancel":
        it.send(wire.Cancel(program=1, branches=(0,)))
    elif end == "close":
        it.send(wire.Close(program=1))
    elif end == "gone":
        it.core.drop_client(b"c", "gone")
        it.settle()
        it.send(wire.Hello(version=1))
    it.send(*ask(9, "a", "x", max_tokens=0))
    limits = it.of(wire.Admitted)[-1].limits
    assert limits is not None
    assert limits.remaining_tokens == 999


def test_events_of_a_program_follow_its_admission() -> None:
    it = world(tenant("a", tokens_per_minute=1000), hold=False)
    it.send(wire.Open(program=1, api_key=key("a")), gen(0, branch=7), append(1, "x", role="nobody"), gen(2))
    kinds = [type(event) for event in it.seen if getattr(event, "program", None) == 1]
    assert kinds == [wire.Admitted, wire.Failed, wire.Failed, wire.Failed]


def test_a_program_that_ends_in_its_first_frame_is_answered_once() -> None:
    it = world(tenant("a", tokens_per_minute=1000))
    it.send(wire.Open(program=1, api_key=key("a")), append(0, "x"), gen(1), wire.Close(program=1))
    assert [type(event) for event in it.seen[1:]] == [wire.Admitted]
    assert it.core.services.admission.num_programs == 0
    it.send(*ask(2, "a", "x", max_tokens=0))
    limits = it.of(wire.Admitted)[-1].limits
    assert limits is not None
    assert limits.remaining_tokens == 999


def test_a_refused_program_leaves_nothing_behind() -> None:
    it = world(tenant("a", tokens_per_minute=100))
    it.send(*ask(1, "a", "x" * 90))
    fork = wire.Fork(program=2, op=1, branch=0, first=1, count=3)
    it.send(wire.Open(program=2, api_key=key("a")), append(0, "y" * 50, program=2), fork, gen(2, program=2, branch=1))
    assert it.one(wire.Refused).program == 2
    assert len(it.runtime.logs) == 1, "the runtime has forgotten its branches too"
    it.now += 60
    it.send(*ask(2, "a", "x"))
    assert it.of(wire.Admitted)[-1].program == 2, "its number may be used again"


def test_while_the_model_loads_programs_are_answered() -> None:
    it = World(settings=config(tenants=(tenant("a", tokens_per_minute=1000),)), is_up=False)
    it.send(*ask(1, "a"))
    assert it.one(wire.Admitted)
    it.runtime.out.append(it.runtime.ready())
    it.settle()
    assert it.one(wire.Done)


# ---- running and queued -------------------------------------------------------------------------------------------


def test_max_running_holds_back_and_refuses_nobody() -> None:
    it = world(tenant("a", max_running=2), tenant("b"))
    for number in range(5):
        it.send(*ask(number, "a"))
    it.send(*ask(9, "b"))
    assert len(it.of(wire.Admitted)) == 6
    assert [m.owner.tenant for m in it.sent(rt.Generate)] == ["a", "a", "b"]
    it.now += 2
    it.runtime.answer(it.sent(rt.Generate)[0].request_id)
    it.settle()
    assert len([m for m in it.sent(rt.Generate) if m.owner.tenant == "a"]) == 3
    answer_all(it)
    assert len(it.of(wire.Done)) == 6
    assert it.one(wire.Done, program=4).usage.queued_s == pytest.approx(2.0)
    assert it.core.services.admission.num_queued == 0


def test_held_back_generations_go_by_class_and_get_older() -> None:
    it = world(tenant("a", max_running=1))
    it.send(*ask(0, "a"), *ask(1, "a", priority="background"), *ask(2, "a", priority="interactive"), *ask(3, "a"))
    answer_all(it)
    assert [done.program for done in it.of(wire.Done)] == [0, 2, 3, 1]
    it.send(*ask(10, "a"), *ask(11, "a", priority="background"))
    it.now += 30
    it.send(wire.Ping(), *ask(12, "a", priority="interactive"))
    answer_all(it)
    assert [done.program for done in it.of(wire.Done)][4:] == [10, 11, 12]


def test_held_back_generations_can_be_cancelled_and_keep_nobody_out() -> None:
    it = world(tenant("a", max_running=1), tenant("b"), max_queued=3)
    it.send(wire.Open(program=1, api_key=key("a")), append(0, "x"), wire.Fork(program=1, op=1, branch=0, first=1, count=9))
    it.send(*(gen(2 + n, branch=1 + n) for n in range(9)))
    assert len(it.sent(rt.Generate)) == 1
    it.send(*ask(2, "b"))
    assert it.of(wire.Admitted)[-1].program == 2, "one tenant's held back generations don't fill the engine's queue"
    it.send(wire.Cancel(program=1, branches=tuple(range(2, 10))))
    assert it.core.services.slots.num_held == 0
    answer_all(it)
    assert len(it.of(wire.Done)) == 2
    assert len(it.of(wire.Failed)) == 8
    assert it.core.services.admission.num_queued == 0
    assert it.core.services.admission.num_queued_uncached_tokens == 0


def test_held_back_scorings() -> None:
    it = world(tenant("a", max_running=1))
    it.send(*ask(0, "a"), wire.Open(program=1, api_key=key("a")), append(0, "hi", role="user", program=1))
    it.send(wire.Score(program=1, op=1, branch=0, var=0, options=("A", "B"), method="unconditional"))
    assert not it.sent(rt.Score)
    answer_all(it)
    assert len(it.sent(rt.Score)) == 2
    assert it.one(wire.Done, program=1).value == "A"


def test_max_queued_of_a_tenant() -> None:
    it = world(tenant("a", max_queued=3), tenant("b"))
    it.send(*(message for number in range(10) for message in ask(number, "a")), *ask(20, "b"))
    assert [event.program for event in it.of(wire.Admitted)] == [0, 1, 2, 20]
    assert all((r.status, r.code) == (429, "rate_limit_exceeded") and r.retry_after_s >= 1 for r in it.of(wire.Refused))
    answer_all(it)
    it.send(*(wire.Open(program=number, api_key=key("a")) for number in range(30, 40)))
    assert [event.program for event in it.of(wire.Admitted)][4:] == [30, 31, 32], "also when ops come later"


def test_a_restarted_runtime_gets_what_was_held_back_and_what_was_not() -> None:
    it = world(tenant("a", max_running=1))
    it.send(*ask(0, "a"), *ask(1, "a"))
    it.core.on_disconnected()
    it.runtime.logs.clear()
    it.runtime.requests.clear()
    it.runtime.epoch, it.runtime.hold = "r2", False
    it.runtime.out.append(it.runtime.ready())
    it.settle()
    assert len(it.of(wire.Done)) == 2


def test_without_a_runtime_held_back_generations_fail_in_time_too() -> None:
    it = world(tenant("a", max_running=1))
    it.send(*ask(0, "a"), *ask(1, "a"), *ask(2, "a"))
    it.core.on_disconnected()
    for _ in range(10):
        it.now += 8
        it.send(wire.Ping())
    assert [failed.code for failed in it.of(wire.Failed)] == ["runtime_down"] * 3
    assert it.core.services.admission.num_queued == 0


# ---- the engine's limits ------------------------------------------------------------------------------------------


def test_queued_uncached_tokens_are_limited() -> None:
    it = world(max_queued_tokens=100)
    it.send(*ask(1, "", "x" * 500))
    assert it.one(wire.Admitted), "alone even what is longer may run"
    it.send(*ask(2, "", "x"))
    refused = it.one(wire.Refused)
    assert (refused.status, refused.code) == (503, "overloaded")
    assert refused.retry_after_s >= 1
    answer_all(it)
    it.send(*ask(3, "", "x" * 60), *ask(4, "", "x" * 41), *ask(5, "", "x" * 40))
    assert [event.program for event in it.of(wire.Admitted)] == [1, 3, 5]


def test_what_a_program_has_brought_before_is_not_counted_again() -> None:
    it = world(max_queued_tokens=10_000)
    fork = wire.Fork(program=1, op=3, branch=0, first=1, count=8)
    it.send(wire.Open(program=1), append(0, "x" * 300), gen(1, max_tokens=5))
    tokens = it.core.services.admission
    assert tokens.num_queued_uncached_tokens == 300
    answer_all(it)
    assert tokens.num_queued_uncached_tokens == 0
    it.send(append(2, "y" * 40), fork, *(append(4 + n, "z" * 5, branch=1 + n) for n in range(8)))
    it.send(*(gen(20 + n, branch=1 + n) for n in range(8)))
    assert tokens.num_queued_uncached_tokens == 40 + 8 * 5
    answer_all(it)
    assert tokens.num_queued_uncached_tokens == 0


# ---- storms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [False, True])
def test_200_opens_and_a_queue_of_4(apart: bool) -> None:
    it = world(tenant("a", tokens_per_minute=10**6), tenant("b", requests_per_minute=2), max_queued=4, max_queued_tokens=10**6)
    for number in range(200):
        messages = ask(number, ("a", "b", "nobody")[number % 3])
        for part in [messages[:1], messages[1:]] if apart else [messages]:
            it.send(*part)
    answers = it.of(wire.Admitted) + it.of(wire.Refused)  # type: ignore[operator]
    assert sorted(event.program for event in answers) == list(range(200))
    statuses = [event.status for event in it.of(wire.Refused)]
    assert statuses.count(401) == 66
    assert len(it.of(wire.Admitted)) == 4
    assert set(statuses) == {401, 429, 503} - ({429} if len(it.of(wire.Admitted)) == 200 else set())
    assert not it.of(wire.Failed)
    answer_all(it)
    assert len(it.of(wire.Done)) == 4
    accounts = it.core.services.accounts
    assert sum(accounts.of(name).totals.requests for name in "ab") == 4
    assert sum(accounts.of(name).totals.refused for name in "ab") == 130
    assert it.core.services.admission.num_refused == 196


FRAMES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(0, 60), st.integers(0, 3), st.booleans(), st.booleans()),
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(frames=FRAMES)
def test_whatever_comes_every_program_gets_one_answer_and_nothing_leaks(
    frames: list[tuple[str, int, int, int, bool, bool]],
) -> None:
    limits = {"requests_per_minute": 10, "tokens_per_minute": 300, "max_running": 2, "max_queued": 3}
    it = world(tenant("a", **limits), tenant("b", max_running=1), max_queued=6, max_queued_tokens=120)
    for number, (name, length, max_tokens, wait_s, runs, ends) in enumerate(frames):
        it.now += wait_s
        it.send(wire.Ping(), *ask(number, name, "x" * length, max_tokens=max_tokens))
        if ends:
            it.send(wire.Close(program=number))
        if runs and it.runtime.requests:
            it.runtime.answer(next(iter(it.runtime.requests)))
            it.settle()
    for _ in range(30):  # debts are paid off
        it.now += 9
        it.send(wire.Ping())
        answer_all(it)
    answered = [event.program for event in it.seen if isinstance(event, wire.Admitted | wire.Refused)]
    assert sorted(answered) == list(range(len(frames)))
    closed = {number for number, frame in enumerate(frames) if frame[5]}
    for event in it.of(wire.Admitted):
        ends_of = it.of(wire.Done, program=event.program) + it.of(wire.Failed, program=event.program)  # type: ignore[operator]
        assert len(ends_of) == 1 or event.program in closed
    services = it.core.services
    assert (services.admission.num_queued, services.admission.num_queued_uncached_tokens, services.slots.num_held) == (0, 0, 0)
    assert all((each.num_queued, each.num_running) == (0, 0) for each in services.tenants.all)
    it.now += 3600
    for each in services.tenants.all:
        full = each.quota.limits(it.now)
        assert full is None or full.remaining_tokens == full.limit_tokens


def test_encode_is_one_token_a_letter() -> None:
    """What the numbers above rest on."""
    assert len(encode("x" * 20)) == 20


def test_idle_programs_count_and_one_tenant_leaves_room_for_others() -> None:
    it = world(tenant("a", max_programs=2), tenant("b"), max_programs=8)
    it.send(*(wire.Open(program=number, api_key=key("a")) for number in range(3)))
    refused = it.one(wire.Refused)
    assert (refused.program, refused.status, refused.code) == (2, 429, "too_many_programs")
    assert "limit 2" in refused.message
    # Without a limit of its own: a quarter of the engine's.
    it.send(*(wire.Open(program=10 + number, api_key=key("b")) for number in range(3)))
    assert [event.program for event in it.of(wire.Refused)] == [2, 12]
    it.send(wire.Close(program=0), wire.Open(program=20, api_key=key("a")))
    assert it.of(wire.Admitted)[-1].program == 20


def test_everybody_together_has_the_engines_limit() -> None:
    it = World(settings=config(max_programs=4)).send(*(wire.Open(program=number) for number in range(5)))
    assert len(it.of(wire.Admitted)) == 4
    assert it.one(wire.Refused).status == 503


def test_a_tenants_context() -> None:
    it = world(tenant("a", max_context=8), tenant("b", max_context=10**6), hold=False)
    it.send(*ask(1, "a", "abcd", max_tokens=4), *ask(2, "a", "abcd", max_tokens=5), *ask(3, "b", "abcd", max_tokens=5))
    assert {done.program for done in it.of(wire.Done)} == {1, 3}
    failed = it.one(wire.Failed)
    assert (failed.program, failed.code) == (2, "context_length_exceeded")
    assert "maximum context length is 8 tokens" in failed.message
    it.send(*ask(4, "a", "x" * 1000), *ask(5, "a", "ab", max_tokens=None), *ask(6, "b", "x" * 1000))
    assert it.one(wire.Failed, program=4, op=0).code == "context_length_exceeded"
    assert it.one(wire.Done, program=6)
    asked = [message.sampling.max_tokens for message in it.sent(rt.Generate)]
    assert 6 in asked, "without max_tokens: what is left of the tenant's context"
    it.send(
        wire.Open(program=7, api_key=key("a")),
        append(0, "abcdefg", program=7),
        wire.Score(program=7, op=1, branch=0, var=0, options=("AB", "hello")),  # one token each
    )
    assert it.one(wire.Done, program=7)
    it.send(wire.Score(program=7, op=2, branch=0, var=1, options=("xyz",)))
    assert it.one(wire.Failed, program=7).code == "context_length_exceeded"
