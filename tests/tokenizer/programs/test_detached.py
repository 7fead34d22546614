"""Programs that outlive their connection."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.config import TokenizerConfig
from tests.tokenizer.programs.harness import World, append, config, encode, gen, says
from tests.tokenizer.tenants.people import key, tenant, world

KEY = "a secret of the client"


def opened(hold: bool = True, ttl_s: float = 60.0, **settings: Any) -> World:
    it = World(settings=config(**settings))
    it.runtime.hold = hold
    return it.send(wire.Open(program=1, detached_ttl_s=ttl_s, resume_key=KEY), append(0, "hi"))


def lose(it: World, client: bytes = b"c") -> None:
    it.core.drop_client(client, "gone")
    it.settle()
    it.seen.clear()


def attach(it: World, client: bytes = b"d", program: int = 7, **fields: Any) -> list[wire.Event]:
    """What the new connection hears at once."""
    it.send(wire.Hello(version=1), client=client)
    it.seen.clear()
    it.send(wire.Attach(program=program, resume_key=fields.pop("resume_key", KEY), **fields), client=client)
    return list(it.seen)


def draw(it: World, text: str) -> None:
    [request_id] = it.runtime.requests
    it.runtime.out.append(rt.Tokens(request_id=request_id, token_ids=encode(text)))
    it.settle()


def test_it_goes_on_without_a_connection_and_its_outcomes_are_kept() -> None:
    it = opened()
    it.send(gen(1), gen(2))
    lose(it)
    it.runtime.scripts.extend([says("AB"), says("C")])
    it.runtime.hold = False
    it.runtime.answer_all()
    it.settle()
    assert not it.seen
    events = attach(it)
    assert events[0] == wire.Attached(program=7, next_op=3, next_var=3, next_branch=1)
    first, second = events[1:]
    assert isinstance(first, wire.Done)
    assert isinstance(second, wire.Done)
    assert [(done.program, done.op, done.value) for done in (first, second)] == [(7, 1, "AB"), (7, 2, "C")]
    assert len(it.sent(rt.Generate)) == 2, "nothing is drawn again"
    # It goes on as before, under the new number.
    it.send(gen(3, program=7), client=b"d")
    assert it.of(wire.Done)[-1].program == 7
    it.send(wire.Close(program=7), client=b"d")
    assert it.core.services.admission.num_programs == 0
    assert not it.core.services.detached._tenants


def test_only_what_is_asked_for_is_told_again_and_it_can_be_taken_up_many_times() -> None:
    it = opened(hold=False)
    it.send(gen(1), gen(2), append(3, "x"), gen(4, max_tokens=0, min_tokens=3))
    lose(it)
    for number, client in enumerate((b"d", b"e", b"f")):
        events = attach(it, client, from_op=2)
        assert [(type(event), getattr(event, "op", None)) for event in events[1:]] == [(wire.Done, 2), (wire.Failed, 4)]
        if number < 2:
            lose(it, client)


def test_ops_that_are_sent_again_are_not_run_again() -> None:
    it = opened(hold=False)
    it.send(gen(1))
    lose(it)
    attach(it)
    it.send(append(0, "hi", program=7), gen(1, program=7), gen(2, program=7), client=b"d")
    assert len(it.sent(rt.Generate)) == 2
    assert not it.of(wire.Failed)
    assert [done.op for done in it.of(wire.Done)] == [1, 2]


def test_a_stream_begins_anew_for_the_new_client() -> None:
    it = opened()
    it.send(gen(1, stream=True, logprobs=0))
    draw(it, "AB")
    assert it.one(wire.Delta).text == "AB"
    lose(it)
    draw(it, "C")
    assert not it.seen, "nobody listens"
    events = attach(it)
    assert [type(event) for event in events] == [wire.Attached, wire.Delta]
    draw(it, "D")
    deltas = it.of(wire.Delta)
    assert [delta.text for delta in deltas] == ["ABC", "D"]
    assert {delta.program for delta in deltas} == {7}
    it.runtime.scripts.append(says("E"))
    it.runtime.answer_all()
    it.settle()
    assert it.one(wire.Done).value == "ABCDE" == "".join(delta.text for delta in it.of(wire.Delta))


def test_a_new_client_without_credits_hears_all_when_it_has_some() -> None:
    it = opened()
    it.send(gen(1, stream=True))
    draw(it, "AB")
    lose(it)
    assert [type(event) for event in attach(it, credits=0)] == [wire.Attached]
    draw(it, "C")
    assert not it.of(wire.Delta)
    it.send(wire.Credit(program=7, amount=1), client=b"d")
    assert it.one(wire.Delta).text == "ABC"
    draw(it, "D")
    it.send(wire.Credit(program=7, amount=1), client=b"d")
    assert [delta.text for delta in it.of(wire.Delta)] == ["ABC", "D"]


def test_one_that_ends_before_its_new_client_has_credits_is_done_all_the_same() -> None:
    it = opened()
    it.send(gen(1, stream=True))
    draw(it, "AB")
    lose(it)
    attach(it, credits=0)
    it.runtime.scripts.append(says("C"))
    it.runtime.answer_all()
    it.settle()
    assert it.one(wire.Done).value == "ABC"
    assert not it.of(wire.Delta)


def test_a_connection_that_still_lives_is_told_that_it_has_lost_the_program() -> None:
    it = opened()
    it.send(gen(1))
    assert isinstance(attach(it)[-1], wire.Attached)
    taken = it.one(wire.Failed)
    assert (taken.program, taken.op, taken.code, taken.status) == (1, -1, "taken_over", 409)
    it.send(append(2, "x"), wire.Close(program=1))
    assert not it.of(wire.Failed)[1:], "what the old one still sends is ignored"
    it.runtime.answer_all()
    it.settle()
    assert it.one(wire.Done).program == 7
    it.send(wire.Open(program=1), append(0, "a"))
    assert it.of(wire.Admitted), "and the number is free for it"


def test_the_same_connection_may_take_its_own_program_up_again() -> None:
    it = opened(hold=False)
    it.send(gen(1))
    it.seen.clear()
    it.send(wire.Attach(program=1, resume_key=KEY))
    assert [type(event) for event in it.seen] == [wire.Attached, wire.Done]
    it.send(wire.Attach(program=2, resume_key=KEY))
    assert it.one(wire.Refused, program=2).code == "too_many_attaches", "a small message makes a large answer"
    it.now += 1
    it.send(wire.Attach(program=2, resume_key=KEY))
    assert it.one(wire.Failed, program=1).code == "taken_over"
    it.send(gen(5, program=2))
    assert it.of(wire.Done)[-1].program == 2


def test_its_time_runs_from_the_disconnection() -> None:
    it = opened(ttl_s=5.0)
    it.send(gen(1), wire.Open(program=2), append(0, "b", program=2), gen(1, program=2))
    it.now += 100
    it.settle()  # silent for too long
    assert it.core.services.admission.num_programs == 1
    assert len(it.runtime.requests) == 1
    it.now += 4.9
    it.settle()
    assert it.runtime.requests
    it.now += 0.2
    it.settle()
    assert not it.runtime.requests
    assert it.core.services.admission.num_programs == 0
    refused = attach(it)[-1]
    assert isinstance(refused, wire.Refused)
    assert refused.status == 404


def test_who_has_taken_it_up_keeps_it() -> None:
    it = opened(ttl_s=5.0)
    lose(it)
    it.now += 4
    attach(it)
    for _ in range(4):
        it.now += 4
        it.send(wire.Ping(), client=b"d")
    it.send(gen(1, program=7), client=b"d")
    assert it.runtime.requests


def test_wrong_keys_and_wrong_tenants_are_told_the_same() -> None:
    it = world(tenant("a"), tenant("b"))
    it.send(wire.Open(program=1, api_key=key("a"), detached_ttl_s=60, resume_key=KEY))
    it.send(wire.Hello(version=1), client=b"d")
    for number, (name, secret) in enumerate([("a", KEY + "x"), ("b", KEY), ("b", "x"), ("a", "")]):
        it.send(wire.Attach(program=number, api_key=key(name), resume_key=secret), client=b"d")
    answers = it.of(wire.Refused)
    assert len(answers) == 4
    assert {(one.status, one.code, one.message) for one in answers} == {(404, "unknown_program", answers[0].message)}
    it.send(append(0, "x", program=0), client=b"d")
    assert not it.of(wire.Failed), "what is sent for it is ignored"
    it.send(wire.Attach(program=5, api_key="nobody's", resume_key=KEY), client=b"d")
    assert it.of(wire.Refused)[-1].status == 401
    it.send(wire.Attach(program=6, api_key=key("a"), resume_key=KEY), client=b"d")
    assert it.one(wire.Attached).program == 6


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        ({"detached_ttl_s": 5.0}, "resume_key of 16"),
        ({"detached_ttl_s": 5.0, "resume_key": "short"}, "resume_key of 16"),
        ({"detached_ttl_s": 5.0, "resume_key": "x" * 129}, "resume_key of 16"),
        ({"detached_ttl_s": -1.0, "resume_key": KEY}, "between 0 and 86400"),
        ({"detached_ttl_s": float("nan"), "resume_key": KEY}, "between 0 and 86400"),
        ({"resume_key": KEY}, "give detached_ttl_s"),
    ],
)
def test_what_could_not_be_taken_up_again_is_refused(opening: dict[str, Any], words: str) -> None:
    refused = World().send(wire.Open(program=1, **opening)).one(wire.Refused)
    assert refused.status == 400
    assert words in refused.message


def test_a_tenant_has_so_many_and_no_more() -> None:
    it = world(tenant("a"), tenant("b"), max_detached=2)
    for number in range(3):
        it.send(wire.Open(program=number, api_key=key("a"), detached_ttl_s=60, resume_key=f"{KEY} {number}"))
    it.send(wire.Open(program=9, api_key=key("b"), detached_ttl_s=60, resume_key=f"{KEY} 0"))
    assert [event.program for event in it.of(wire.Admitted)] == [0, 1, 9]
    refused = it.one(wire.Refused)
    assert (refused.program, refused.status, refused.code) == (2, 429, "too_many_detached")
    it.send(wire.Close(program=0), wire.Open(program=3, api_key=key("a"), detached_ttl_s=60, resume_key=f"{KEY} 1"))
    assert it.of(wire.Refused)[-1].code == "duplicate_program"
    it.send(wire.Open(program=4, api_key=key("a"), detached_ttl_s=60, resume_key=f"{KEY} 4"))
    assert it.of(wire.Admitted)[-1].program == 4


def test_outcomes_beyond_the_limit_are_told_as_such() -> None:
    it = opened(hold=False, max_detached_bytes=400)
    it.runtime.scripts.extend([says("A" * 150), says("B" * 100), says("short")])
    it.send(gen(1), gen(2), gen(3))
    lose(it)
    events = attach(it)[1:]
    gone = [event for event in events if isinstance(event, wire.Failed)]
    assert gone
    assert {(event.code, event.status) for event in gone} == {("outcome_not_kept", 410)}
    assert gone[0].op == 1 == gone[0].var
    assert sorted(event.op for event in events) == [1, 2, 3]  # type: ignore[union-attr]
    assert it.of(wire.Done)[-1].value == "short"
    journal = next(iter(it.core.services.detached._ttls)).journal
    assert journal is not None
    assert journal.num_bytes <= 400
    it.send(wire.Close(program=7), client=b"d")
    assert journal.num_bytes == 0


def test_a_tenants_programs_share_their_room() -> None:
    it = world(tenant("a"), hold=False, max_detached_bytes_of_tenant=1000)
    for number in range(4):
        it.runtime.scripts.append(says("A" * 150))
        it.send(wire.Open(program=number, api_key=key("a"), detached_ttl_s=60, resume_key=f"{KEY} {number}"))
        it.send(append(0, "x", program=number), gen(1, program=number))
    shelf = it.core.services.detached._tenants["a"].shelf
    assert 0 < shelf.num_bytes <= 1000
    it.core.drop_client(b"c", "gone")
    it.now += 100
    it.settle()
    assert shelf.num_bytes == 0


def test_a_stream_beyond_the_limit_ends_with_its_value_alone() -> None:
    it = opened(max_detached_bytes=300)
    it.send(gen(1, stream=True))
    for _ in range(4):
        draw(it, "x" * 40)
    lose(it)
    assert [type(event) for event in attach(it)] == [wire.Attached]
    draw(it, "y")
    assert not it.of(wire.Delta)
    it.runtime.scripts.append(says("z"))
    it.runtime.answer_all()
    it.settle()
    assert it.one(wire.Done).value.endswith("yz")


def test_a_lease_that_is_lost_while_nobody_listens_is_told_later() -> None:
    it = opened(hold=False)
    it.send(gen(1), wire.Lease(program=1, op=2, branch=0, ttl_s=60.0))
    lose(it)
    [branch_id] = it.runtime.leases
    it.core.on_runtime(rt.LeaseLost(branch_id=branch_id))
    it.settle()
    assert attach(it)[-1] == wire.LeaseLost(program=7, branch=0)


def test_a_dead_client_leaves_nothing_running_and_nothing_leased() -> None:
    """With the settings that processes have by default: within 12 seconds."""
    defaults = TokenizerConfig(model="m", model_name="tiny", socket="ipc://s", runtime_socket="ipc://r")
    it = World(settings=defaults)
    it.send(wire.Open(program=1), append(0, "a"), gen(1), wire.Lease(program=1, op=2, branch=0, ttl_s=600.0))
    it.runtime.hold = True
    it.send(wire.Fork(program=1, op=3, branch=0, first=1, count=4), *(gen(4 + b, branch=b) for b in range(1, 5)))
    assert len(it.runtime.requests) == 4
    assert it.runtime.leases
    for _ in range(110):
        it.now += 0.1
        it.settle()
    assert not it.runtime.requests
    assert not it.runtime.leases
    assert not it.runtime.logs
    assert it.core.services.admission.num_programs == it.core.services.admission.num_queued == 0
    assert not it.core.services.tasks


def test_attaching_by_turns_from_two_connections_can_not_make_the_server_tell_all_again_and_again() -> None:
    it = opened(hold=False)
    it.runtime.scripts.append(says("ABC" * 300_000))
    it.send(gen(1, max_tokens=4000))
    lose(it)
    told = attach(it, b"a")
    assert [type(event) for event in told] == [wire.Attached, wire.Done]
    kept = len(wire.encode(told))
    assert attach(it, b"b") == [], "the next one waits"
    for _ in range(20):
        it.send(wire.Attach(program=7, resume_key=KEY), client=b"a")
    assert not it.of(wire.Attached)
    it.now += kept / (2 << 20) + 0.2
    it.seen.clear()
    it.settle()
    assert len(it.of(wire.Attached)) == 1, "and is answered when that much may be told again"
    assert len(it.of(wire.Done)) == 1


def test_an_attach_that_waits_is_forgotten_with_its_connection_and_keeps_the_program() -> None:
    it = opened(hold=False, ttl_s=1.0)
    it.send(wire.Open(program=2, detached_ttl_s=1.0, resume_key=KEY * 2), append(0, "hi", program=2))
    it.runtime.scripts.append(says("ABC" * 600_000))
    it.send(gen(1, max_tokens=4000))
    lose(it)
    attach(it, b"a")
    attach(it, b"b", resume_key=KEY * 2)
    it.core.drop_client(b"b", "gone")
    attach(it, b"a", program=8, resume_key=KEY * 2)
    assert not it.of(wire.Attached)
    for _ in range(3):
        it.now += 1.2
        it.send(wire.Ping(), client=b"a")
    assert [event.program for event in it.of(wire.Attached)] == [8], "its time was over, but for those who wait for it"
