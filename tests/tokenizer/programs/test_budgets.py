"""Budgets of whole programs."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.budget import ProgramBudget
from radixserve_tokenizer.programs.transcript import TextModel
from radixserve_tokenizer.text.template import ChatTemplate
from radixserve_tokenizer.tools.jsonformats import SmolLM2
from tests.tokenizer.programs.harness import TEMPLATE, World, append, encode, gen, says, tokenizer

CALL = '{"name": "look", "arguments": {}}'


def opened(hold: bool = False, **limits: float) -> World:
    world = World()
    world.runtime.hold = hold
    return world.send(wire.Open(program=1, budget=wire.Budget(**limits)), append(0, "hi"))  # type: ignore[arg-type]


def draw(world: World, request_id: int, text: str) -> None:
    """Tokens come, and the generation goes on."""
    world.runtime.out.append(rt.Tokens(request_id=request_id, token_ids=encode(text)))
    world.settle()


def requests(world: World) -> list[rt.Generate]:
    return [request for request in world.runtime.requests.values() if isinstance(request, rt.Generate)]


def test_a_generation_gets_no_more_tokens_than_are_left_and_ends_as_exhausted() -> None:
    world = opened(tokens=5)
    world.runtime.scripts.extend([says("abc", reason="length"), says("de", reason="length")])
    world.send(gen(1, max_tokens=3), wire.Gen(program=1, op=2, branch=0, var=2, where="chat.py:12"))
    assert world.one(wire.Done).value == "abc"
    assert [message.sampling.max_tokens for message in world.sent(rt.Generate)] == [3, 2]
    failed = world.one(wire.Failed)
    assert (failed.code, failed.status, failed.op, failed.var, failed.partial) == ("budget_exhausted", 400, 2, 2, "de")
    assert not failed.retryable
    assert failed.message == ("budget exhausted at op 2 (chat.py:12): the program may use 5 output tokens and has used 5")


def test_a_generation_that_asks_for_just_what_is_left_is_done() -> None:
    world = opened(tokens=3)
    world.runtime.scripts.append(says("abc", reason="length"))
    world.send(gen(1, max_tokens=3))
    assert (world.one(wire.Done).value, world.one(wire.Done).finish_reason) == ("abc", "length")
    assert not world.of(wire.Failed)
    # What uses no output tokens still goes; another token does not.
    world.send(gen(2, max_tokens=0, prompt_logprobs=0))
    world.send(gen(3, max_tokens=1))
    assert world.one(wire.Failed, op=3).code == "budget_exhausted"


def test_a_generation_that_stops_by_itself_within_what_is_left_is_done() -> None:
    world = opened(tokens=3)
    world.runtime.scripts.append(says("ab"))
    world.send(gen(1))
    assert (world.one(wire.Done).value, world.one(wire.Done).finish_reason) == ("ab", "stop")


def test_what_comes_later_fails_at_once_on_every_branch_and_after_a_rollback() -> None:
    world = opened(tokens=2)
    world.send(wire.Fork(program=1, op=1, branch=0, first=1, count=2))
    world.runtime.scripts.append(says("ab", reason="length"))
    world.send(gen(2, branch=1))
    count = len(world.sent(rt.Generate)) + len(world.sent(rt.Score))
    world.send(
        gen(3, branch=1),
        wire.Select(program=1, op=4, branch=2, var=4, options=("a", "b")),
        wire.Score(program=1, op=5, branch=0, var=5, options=("a", "b")),
        wire.Lease(program=1, op=6, branch=0, ttl_s=5.0),
        wire.Rollback(program=1, op=7, branch=1, to_op=2),
        gen(8, branch=1),
    )
    codes = {event.op: event.code for event in world.of(wire.Failed)}
    assert codes == dict.fromkeys((2, 3, 4, 5, 6, 8), "budget_exhausted")
    assert len(world.sent(rt.Generate)) + len(world.sent(rt.Score)) == count
    assert world.core.services.admission.num_queued == 0


def test_branches_side_by_side_are_cancelled_when_together_they_have_used_it() -> None:
    world = opened(hold=True, tokens=6)
    world.send(wire.Fork(program=1, op=1, branch=0, first=1, count=3))
    world.send(*(gen(1 + branch, branch=branch, max_tokens=10) for branch in (1, 2, 3)))
    running = requests(world)
    assert len(running) == 3
    for _ in range(2):
        world.runtime.out.extend(rt.Tokens(request_id=one.request_id, token_ids=encode("a")) for one in running)
        world.settle()
    assert {event.code for event in world.of(wire.Failed)} == {"budget_exhausted"}
    assert {event.partial for event in world.of(wire.Failed)} == {"aa"}
    assert len(world.of(wire.Failed)) == 3
    assert {number for one in world.sent(rt.Cancel) for number in one.request_ids} == {one.request_id for one in running}
    assert not world.runtime.requests


def test_one_that_ends_in_the_step_that_uses_it_up_is_done() -> None:
    world = opened(hold=True, tokens=4)
    world.send(wire.Fork(program=1, op=1, branch=0, first=1, count=2))
    world.send(*(gen(1 + branch, branch=branch, max_tokens=10) for branch in (1, 2)))
    first, second = requests(world)
    world.runtime.out.extend(rt.Tokens(request_id=one.request_id, token_ids=encode("ab")) for one in (first, second))
    usage = rt.Usage(prompt_tokens=2, cached_tokens=0, output_tokens=2)
    world.runtime.out.append(rt.Finished(request_id=first.request_id, reason="stop", usage=usage))
    del world.runtime.requests[first.request_id]
    world.settle()
    assert world.one(wire.Done).op == 2
    assert world.one(wire.Failed).op == 3


def test_tokens_of_a_generation_that_failed_or_was_cancelled_count() -> None:
    world = opened(hold=True, tokens=4)
    world.send(gen(1, max_tokens=4))
    draw(world, requests(world)[0].request_id, "abc")
    world.send(wire.Cancel(program=1, branches=(0,)), wire.Rollback(program=1, op=2, branch=0, to_op=1), gen(3))
    assert requests(world)[0].sampling.max_tokens == 1


def test_tokens_that_a_dead_runtime_took_with_it_count_once() -> None:
    world = opened(hold=True, tokens=4)
    world.send(gen(1, max_tokens=4))
    draw(world, requests(world)[0].request_id, "abc")
    world.core.on_disconnected()
    world.runtime.requests.clear()
    world.runtime.epoch = "r2"
    world.core.on_runtime(world.runtime.ready())
    world.runtime.scripts.append(says("abcd", reason="length"))
    world.runtime.hold = False
    world.settle()
    world.runtime.answer_all()
    world.settle()
    assert world.one(wire.Done).value == "abcd"


def test_time_is_counted_from_admission_and_ends_what_runs_and_what_waits() -> None:
    world = opened(hold=True, seconds=2.0)
    world.send(
        wire.Fork(program=1, op=1, branch=0, first=1, count=1),
        gen(2),
        append(3, wire.VarRef(var=2), branch=1),
        gen(4, branch=1),
        gen(5),
        wire.Score(program=1, op=6, branch=0, var=6, options=("a",)),
    )
    draw(world, requests(world)[0].request_id, "ab")
    world.now += 1.9
    world.settle()
    assert not world.of(wire.Failed)
    world.now += 0.2
    world.settle()
    failed = {event.op: event for event in world.of(wire.Failed)}
    assert sorted(failed) == [2, 4, 5, 6]
    assert {event.code for event in failed.values()} == {"budget_exhausted"}
    assert failed[2].partial == "ab"
    assert "op 5: the program may run for 2 s and has run for 2.1 s" in failed[5].message
    assert not world.runtime.requests
    world.send(gen(7))
    assert world.one(wire.Failed, op=7).code == "budget_exhausted"


def test_time_ends_what_waits_for_the_model_and_leases() -> None:
    world = World(is_up=False)
    world.send(wire.Open(program=1, budget=wire.Budget(seconds=1.0)), append(0, "a"), gen(1))
    world.now += 1.5
    world.settle()
    assert world.one(wire.Failed).code == "budget_exhausted"
    world = opened(seconds=1.0)
    world.send(gen(1), wire.Lease(program=1, op=2, branch=0, ttl_s=60.0))
    assert world.runtime.leases
    world.now += 1.5
    world.settle()
    assert not world.runtime.leases
    assert world.one(wire.LeaseLost).branch == 0


def test_a_program_that_has_ended_is_not_looked_at_again() -> None:
    world = opened(seconds=1.0)
    world.send(wire.Close(program=1))
    assert not world.core.services.budgets.deadlines
    world.now += 5
    world.settle()
    assert not world.of(wire.Failed)


@pytest.mark.parametrize("limits", [{"tokens": -1}, {"seconds": 0.0}, {"seconds": float("nan")}, {"tool_calls": -1}])
def test_a_budget_that_means_nothing_is_refused(limits: dict[str, float]) -> None:
    refused = opened(**limits).one(wire.Refused)
    assert refused.status == 400
    assert f"budget.{next(iter(limits))}" in refused.message


def test_no_tokens_at_all() -> None:
    world = opened(tokens=0).send(gen(1))
    assert world.one(wire.Failed).code == "budget_exhausted"
    assert not world.sent(rt.Generate)


def test_tool_calls_are_counted_by_values() -> None:
    budget = ProgramBudget(wire.Budget(tool_calls=3))
    op = gen(5)
    assert budget.count_calls(2, op) is None
    assert budget.count_calls(0, op) is None
    assert budget.count_calls(1, op) is None
    assert budget.refuses(op) is None, "text may still be generated"
    required = wire.Gen(program=1, op=6, branch=0, var=6, tool_use=wire.ToolUse(mode="required"))
    assert budget.refuses(required) is not None
    budget = ProgramBudget(wire.Budget(tool_calls=3))
    budget.count_calls(2, op)
    error = budget.count_calls(2, op)
    assert error is not None
    assert error.message == "budget exhausted at op 5: the program may make 3 tool calls and has made 2; this generation has 2"
    later = budget.refuses(op)
    assert later is not None
    assert later.code == "budget_exhausted"
    unlimited = ProgramBudget()
    assert unlimited.count_calls(10**6, op) is None


def test_a_value_with_too_many_calls_fails_and_keeps_its_text() -> None:
    world = opened(hold=True, tool_calls=0)
    world.send(gen(1))
    [branch] = [task.branch for task in world.core.services.tasks.values()]
    assert branch.task is not None
    done = wire.Done(program=1, op=1, var=1, value="x", calls=(wire.ToolCall(id="1", name="f", arguments="{}"),))
    draw(world, requests(world)[0].request_id, "so")
    world.core._outcomes.done(branch.task, done)
    world.settle()
    failed = world.one(wire.Failed)
    assert (failed.code, failed.partial) == ("budget_exhausted", "so")
    assert branch.poison is not None


def with_tools(**limits: int) -> World:
    """A program whose branch has a tool, which it has to call."""
    form = SmolLM2(tokenizer().special)
    world = World(text=TextModel(tokenizer(), ChatTemplate(TEMPLATE, tokenizer(), form), form))
    world.send(
        wire.Open(program=1, budget=wire.Budget(**limits)),
        append(0, "hi", role="user"),
        wire.Tools(program=1, op=1, branch=0, tools=(wire.ToolSpec(name="look"),)),
    )
    return world


def call_gen(op: int, mode: Literal["auto", "required"] = "auto") -> wire.Gen:
    return wire.Gen(program=1, op=op, branch=0, var=op, tool_use=wire.ToolUse(mode=mode), where=f"agent.py:{op}")


def test_calls_that_a_model_makes_beyond_the_budget_fail_their_generation() -> None:
    world = with_tools(tool_calls=1)
    world.runtime.scripts.extend(says(f"<tool_call>[{CALL}]</tool_call>") for _ in range(2))
    world.send(call_gen(2, "required"), append(3, "found", role="tool"), call_gen(4))
    assert [call.name for call in world.one(wire.Done).calls] == ["look"]
    assert world.one(wire.Failed).message == (
        "budget exhausted at op 4 (agent.py:4): the program may make 1 tool calls and has made 1; this generation has 1"
    )
    world.send(wire.Rollback(program=1, op=5, branch=0, to_op=4), gen(6))
    assert world.one(wire.Failed, op=6).code == "budget_exhausted"
    world = with_tools(tool_calls=1)
    world.runtime.scripts.append(says(f"<tool_call>[{CALL}, {CALL}]</tool_call>"))
    world.send(call_gen(2, "required"))
    assert world.one(wire.Failed).code == "budget_exhausted"


def test_a_call_that_the_budget_cuts_short_is_no_call() -> None:
    world = with_tools(tokens=9)
    world.runtime.scripts.append(says("<tool_cal", reason="length"))
    world.send(call_gen(2, "required"))
    assert world.one(wire.Failed).code == "budget_exhausted"
    assert not world.of(wire.Done)


@given(st.integers(0, 12), st.lists(st.tuples(st.integers(1, 3), st.integers(1, 8)), min_size=1, max_size=4))
def test_branches_never_draw_more_than_one_step_beyond_it(most: int, branches: list[tuple[int, int]]) -> None:
    world = opened(hold=True, tokens=most)
    world.send(wire.Fork(program=1, op=1, branch=0, first=1, count=len(branches)))
    world.send(*(gen(2 + number, branch=1 + number, max_tokens=asked) for number, (_, asked) in enumerate(branches)))
    given_out = {one.request_id: (one, branches[index][0]) for index, one in enumerate(requests(world))}
    drawn = dict.fromkeys(given_out, 0)
    for _ in range(20):
        for request_id, (one, speed) in given_out.items():
            if request_id not in world.runtime.requests:
                continue
            count = min(speed, one.sampling.max_tokens - drawn[request_id])
            drawn[request_id] += count
            world.runtime.out.append(rt.Tokens(request_id=request_id, token_ids=encode("a") * count))
            if drawn[request_id] == one.sampling.max_tokens:
                del world.runtime.requests[request_id]
                usage = rt.Usage(prompt_tokens=2, cached_tokens=0, output_tokens=count)
                world.runtime.out.append(rt.Finished(request_id=request_id, reason="length", usage=usage))
        world.settle()
    assert not world.runtime.requests
    assert sum(drawn.values()) < most + sum(speed for speed, _ in branches)
    assert sum(drawn.values()) <= most or len(branches) > 1
    answered = [event.op for event in world.seen if isinstance(event, wire.Done | wire.Failed)]
    assert sorted(answered) == [2 + number for number in range(len(branches))]
    asked = {2 + number: most_tokens for number, (_, most_tokens) in enumerate(branches)}
    assert all(len(event.token_ids) == asked[event.op] for event in world.of(wire.Done))
