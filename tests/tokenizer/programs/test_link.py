"""The runtime forgets, restarts, goes away and comes back."""

from __future__ import annotations

import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from tests.tokenizer.programs.harness import World, append, config, encode, gen, says, text_model


def opened() -> World:
    return World().send(wire.Open(program=1, seed=7))


def restart(world: World, epoch: str = "r2") -> None:
    """A new runtime takes the place of the one that died."""
    world.core.on_disconnected()
    assert world.core.link.take_outgoing() == []
    world.runtime.logs.clear()
    world.runtime.requests.clear()
    world.runtime.known_grammars.clear()
    world.runtime.out.clear()
    world.runtime.epoch = epoch
    assert world.core.link.hello_due(world.now) is not None
    world.core.link.hello_sent(world.now)
    world.runtime.out.append(world.runtime.ready())
    world.settle()


def test_a_lost_base_is_sent_whole() -> None:
    world = opened().send(append(0, "hello AB"), gen(1))
    world.runtime.lose_bases = 1
    world.send(append(2, "more"), gen(3))
    short, whole = world.sent(rt.Generate)[1:]
    assert short.base.length > 0
    assert (whole.request_id, whole.base.length) == (short.request_id, 0)
    assert whole.base.new_ids == encode("hello AB") + encode("ok") + encode("more")
    assert len(world.of(wire.Done)) == 2


def test_asking_again_and_again_fails_the_request_alone() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "hello"), wire.Fork(program=1, op=1, branch=0, first=1, count=1), gen(2), gen(3, branch=1))
    request = world.sent(rt.Generate)[0]
    for _ in range(5):
        world.core.on_runtime(rt.NeedTokens(request_id=request.request_id, branch_id=request.branch_id))
        world.settle()
    assert world.one(wire.Failed).op == 2
    world.runtime.answer_all()
    world.settle()
    assert world.one(wire.Done).op == 3


def test_a_generation_that_nobody_saw_is_run_again_from_the_log_with_the_same_seed() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "hello"), gen(1), wire.Open(program=2, seed=1, credits=0), append(0, "x", program=2))
    world.send(gen(1, program=2, stream=True))
    for message in world.sent(rt.Generate):
        world.core.on_runtime(rt.Tokens(request_id=message.request_id, token_ids=encode("lost")))
    world.flush()
    world.runtime.hold = False
    world.runtime.scripts.extend([says("first"), says("second")])
    restart(world)
    before, after = world.sent(rt.Generate)[0], world.sent(rt.Generate)[2]
    assert after.sampling == before.sampling
    assert after.base == rt.Base(new_ids=encode("hello"))
    assert [done.value for done in world.of(wire.Done)] == ["first", "second"]
    assert not world.of(wire.Delta)
    assert not world.of(wire.Failed)


def test_a_generation_that_was_seen_fails_clearly_and_at_once() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "hello"), gen(1, stream=True), gen(2))
    world.core.on_runtime(rt.Tokens(request_id=world.sent(rt.Generate)[0].request_id, token_ids=encode("seen")))
    world.flush()
    world.core.on_disconnected()
    world.flush()
    failed = world.one(wire.Failed, op=1)
    assert (failed.code, failed.status, failed.retryable, failed.partial) == ("runtime_restarted", 503, True, "seen")
    assert (world.one(wire.Failed, op=2).code, world.one(wire.Failed, op=2).retryable) == ("skipped", True)
    world.runtime.hold = False
    restart(world)
    world.send(wire.Rollback(program=1, op=3, branch=0, to_op=1), gen(4))
    assert world.one(wire.Done, op=4)


def test_scorings_are_run_again() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "hi", role="user"))
    world.send(wire.Score(program=1, op=1, branch=0, var=0, options=("A", "B"), method="unconditional"))
    world.runtime.hold = False
    restart(world)
    assert world.one(wire.Done).value == "A"


def test_after_a_restart_everything_is_sent_anew() -> None:
    constraint = wire.Constraint(kind="regex", source="a")
    world = opened().send(append(0, "hello"), gen(1, constraint=constraint), append(2, "more"))
    restart(world)
    world.send(gen(3, constraint=constraint))
    message = world.sent(rt.Generate)[1]
    assert message.base.length == 0
    assert message.grammar
    assert message.grammar.payload


def test_the_same_epoch_again_changes_nothing() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "hello"), gen(1))
    world.core.on_runtime(world.runtime.ready())
    world.settle()
    assert len(world.sent(rt.Generate)) == 1


def test_a_new_epoch_without_a_disconnection_is_a_restart() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "hello"), gen(1))
    world.runtime.epoch = "r2"
    world.core.on_runtime(world.runtime.ready())
    world.settle()
    assert len(world.sent(rt.Generate)) == 2


def test_a_runtime_that_forgot_us_is_greeted_again() -> None:
    world = opened()
    world.core.on_runtime(rt.Failed(request_id=-1, code="no_hello", message="say hello"))
    assert world.core.link.state == "down"
    assert world.core.link.hello_due(world.now) is not None


def test_while_the_runtime_is_away_ops_wait_and_then_fail_in_bounded_time() -> None:
    world = opened()
    world.core.on_disconnected()
    world.send(append(0, "hello"), gen(1), wire.Query(id=1, kind="health"), wire.Query(id=2, kind="reset_cache"))
    assert not world.of(wire.Failed)
    assert world.of(wire.Reply)[0].body["status"] == "runtime_down"
    assert world.of(wire.Reply)[1].status == 503
    for _ in range(4):
        world.now += 8
        world.send(wire.Ping())
    failed = world.one(wire.Failed)
    assert (failed.code, failed.status, failed.retryable) == ("runtime_down", 503, True)
    assert world.core.services.admission.num_queued == 0


def test_before_the_model_is_there_hello_waits_and_health_says_loading() -> None:
    world = World(is_up=False).send(wire.Query(id=1, kind="health"))
    assert world.one(wire.Reply).body["status"] == "loading"
    assert not world.of(wire.Welcome)
    world.send(wire.Open(program=1), append(0, "hello"), gen(1))
    assert world.one(wire.Admitted)
    world.runtime.out.append(world.runtime.ready())
    world.settle()
    assert world.one(wire.Welcome).model.max_context == 4096
    assert world.one(wire.Done)


def test_hello_is_tried_again() -> None:
    link = World(is_up=False).core.link
    assert link.hello_due(0.0) is not None
    link.hello_sent(0.0)
    assert link.hello_due(1.0) is None
    hello = link.hello_due(2.0)
    assert hello is not None
    assert hello.vocabulary == text_model().tokenizer.vocabulary


def test_a_rejected_hello_shows_in_health() -> None:
    world = World(is_up=False)
    world.core.on_runtime(rt.Rejected(message="another vocabulary"))
    world.send(wire.Query(id=1, kind="health"))
    body = world.one(wire.Reply).body
    assert (body["status"], body["message"]) == ("runtime_down", "another vocabulary")


@pytest.mark.parametrize(
    ("event", "status", "code"),
    [
        (rt.Failed(request_id=0, code="context_length_exceeded", message="m"), 400, "context_length_exceeded"),
        (rt.Failed(request_id=0, code="forward_failed", message="m"), 500, "forward_failed"),
        (rt.Failed(request_id=0, code="pool", message="m", retryable=True), 503, "pool"),
        (
            rt.Finished(request_id=0, reason="abort", usage=rt.Usage(prompt_tokens=0, cached_tokens=0, output_tokens=0)),
            503,
            "aborted",
        ),
    ],
)
def test_failures_of_the_runtime_reach_their_op(event: rt.Failed | rt.Finished, status: int, code: str) -> None:
    import msgspec

    world = opened()
    world.runtime.hold = True
    world.send(append(0, "hello"), gen(1))
    request_id = world.sent(rt.Generate)[0].request_id
    world.core.on_runtime(msgspec.structs.replace(event, request_id=request_id))
    world.settle()
    failed = world.one(wire.Failed)
    assert (failed.status, failed.code) == (status, code)
    assert world.core.services.admission.num_queued == 0
    assert not world.core.link.in_flight


def test_pings_go_out_every_second() -> None:
    world = World(settings=config())
    world.now += 5
    world.settle()
    world.settle()
    assert len(world.sent(rt.Ping)) == 2
