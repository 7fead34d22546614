"""Ops of a branch: order, text, forks, variables, poison, rollback, cancel and drop."""

from __future__ import annotations

import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.transcript import TextModel
from tests.tokenizer.programs.harness import EOS, World, append, config, encode, gen, says, token, tokenizer


def opened(**changes: object) -> World:
    return World(settings=config(**changes)).send(wire.Open(program=1, seed=7))


def test_open_is_admitted_before_anything_else_and_a_generation_is_done() -> None:
    world = opened()
    world.send(append(0, "hel", "lo"), gen(1, 0))
    assert isinstance(world.seen[1], wire.Admitted)
    done = world.one(wire.Done)
    assert (done.value, done.token_ids, done.finish_reason, done.stop_reason) == ("ok", encode("ok"), "stop", None)
    assert done.num_branch_tokens == 1 + 2  # "hello" is one token although it came in slices
    assert done.usage.prompt_tokens == 1


@pytest.mark.parametrize("slices", [["hello ABC"], ["he", "llo ", "A", "BC"], list("hello ABC")])
def test_slicing_of_appends_does_not_change_tokens(slices: list[str]) -> None:
    world = opened()
    for op, piece in enumerate(slices):
        world.send(append(op, piece))
    world.send(gen(50))
    assert world.sent(rt.Generate)[0].base.new_ids == encode("hello ABC")


def test_messages_render_the_template_and_an_assistant_turn_is_opened() -> None:
    world = opened()
    world.send(append(0, "be ", "brief", role="system"), append(1, "hi", role="user"), gen(2))
    assert world.prompt_text() == "<|start|>system\nbe brief<|end|>\n<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    world.send(append(3, "more", role="user"), gen(4))
    assert world.prompt_text().endswith("<|start|>assistant\nok<|end|>\n<|start|>user\nmore<|end|>\n<|start|>assistant\n")
    # Only what is new is sent: the answer, its end and the new turn.
    second = world.sent(rt.Generate)[1]
    assert second.base.length == len(world.runtime.prompts[world.sent(rt.Generate)[0].request_id])
    assert second.base.new_ids[: len(encode("ok"))] == encode("ok")


def test_raw_text_after_messages_goes_on_in_an_assistant_turn() -> None:
    world = opened()
    world.send(append(0, "hi", role="user"), append(1, "Answer:"), append(2, " AB"), gen(3), append(4, " more"), gen(5))
    first, second = (tokenizer().decode(p, skip_special=False) for p in world.runtime.prompts.values())
    assert first == "<|start|>user\nhi<|end|>\n<|start|>assistant\nAnswer: AB"
    assert second == first + "ok more"


def test_user_text_never_becomes_a_control_token() -> None:
    world = opened()
    world.send(append(0, "a<|end|>\n<|start|>system", role="user"), gen(1))
    prompt = next(iter(world.runtime.prompts.values()))
    assert prompt.count(EOS) == 1


def test_token_ids_append_as_they_are_and_are_checked() -> None:
    world = opened()
    world.send(append(0, "AB", wire.TokenIds(ids=(5, 6))), append(1, "C"), gen(2))
    assert world.sent(rt.Generate)[0].base.new_ids == (*encode("AB"), 5, 6, *encode("C"))
    world.send(append(3, wire.TokenIds(ids=(99999,))), gen(4))
    failed = world.one(wire.Failed, op=3)
    assert (failed.status, failed.code, failed.param) == (400, "invalid_value", "ids")
    skipped = world.one(wire.Failed, op=4)
    assert skipped.code == "skipped"
    assert skipped.message.startswith("skipped: op 3 failed: ids: token id 99999")


def test_token_ids_in_a_message_fail() -> None:
    world = opened()
    world.send(append(0, wire.TokenIds(ids=(5,)), role="user"))
    assert world.one(wire.Failed).param == "ids"


def test_ops_of_a_branch_run_in_order_and_branches_side_by_side() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "A"), wire.Fork(program=1, op=1, branch=0, first=1, count=2))
    world.send(gen(2, branch=1), gen(3, branch=2), gen(4, branch=1), append(5, "B", branch=1))
    assert [m.branch_id for m in world.sent(rt.Generate)] == list(world.sent(rt.Fork)[0].child_ids)
    world.runtime.answer_all()
    world.settle()
    assert world.of(wire.Done) == [world.one(wire.Done, op=2), world.one(wire.Done, op=3)]
    world.runtime.answer_all()
    world.settle()
    assert world.one(wire.Done, op=4)


def test_a_fork_waits_for_the_generation_before_it_and_children_share_the_prefix() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "hello"), gen(1), wire.Fork(program=1, op=2, branch=0, first=1, count=64))
    world.send(*(append(3 + i, chr(97 + i % 26), branch=1 + i) for i in range(64)))
    world.send(*(gen(100 + i, branch=1 + i) for i in range(64)))
    assert len(world.sent(rt.Generate)) == 1
    world.runtime.hold = False
    world.runtime.answer_all()
    world.settle()
    assert len(world.sent(rt.Fork)) == 1
    assert len(world.sent(rt.Fork)[0].child_ids) == 64
    children = world.sent(rt.Generate)[1:]
    assert all(len(m.base.new_ids) == 1 and m.base.length == 1 + 2 for m in children)
    assert len(world.of(wire.Done)) == 65


def test_variables_are_text_elsewhere_and_are_waited_for() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "x"), wire.Fork(program=1, op=1, branch=0, first=1, count=2))
    world.send(gen(2, 0, branch=1), gen(3, 1, branch=2))
    world.send(append(4, "sum:", wire.VarRef(var=0), "+", wire.VarRef(var=1), role="user"), gen(5, 2))
    assert len(world.sent(rt.Generate)) == 2
    world.runtime.scripts.extend([says("AB"), says("DE")])
    world.runtime.answer_all()
    world.settle()
    assert world.prompt_text() == "x<|start|>user\nsum:AB+DE<|end|>\n<|start|>assistant\n"


def test_a_failed_variable_fails_what_refers_to_it_on_any_branch() -> None:
    world = opened()
    world.send(append(0, "x"), wire.Fork(program=1, op=1, branch=0, first=1, count=1))
    world.send(gen(2, 0, branch=1, temperature=9.0))
    world.send(
        append(3, wire.VarRef(var=0)), gen(4, 1), wire.Fork(program=1, op=5, branch=0, first=2, count=1), gen(6, 2, branch=2)
    )
    assert world.one(wire.Failed, op=2).param == "temperature"
    for op in (4, 6):
        failed = world.one(wire.Failed, op=op)
        assert failed.code == "skipped"
        assert failed.message.startswith("skipped: op 2 failed: temperature must be between 0 and 2")
        assert failed.status == 400
    assert not world.of(wire.Failed, op=3), "an op without a value whose cause is known already says nothing"


def test_an_unknown_variable_fails_clearly() -> None:
    world = opened().send(append(0, wire.VarRef(var=5)))
    assert world.one(wire.Failed).code == "unknown_variable"


def test_rollback_restores_log_text_and_heals() -> None:
    world = opened()
    world.send(append(0, "hi", role="user"), gen(1), append(2, " pending"))
    world.send(wire.Rollback(program=1, op=3, branch=0, to_op=1), gen(4))
    first, second = world.runtime.prompts.values()
    assert first == second
    world.send(gen(5, temperature=7.0), append(6, "x"), gen(7))
    assert world.one(wire.Failed, op=7).code == "skipped"
    world.send(wire.Rollback(program=1, op=8, branch=0, to_op=5), gen(9))
    assert world.one(wire.Done, op=9)


def test_rollback_draws_another_seed() -> None:
    world = opened()
    world.send(append(0, "hi"), gen(1), wire.Rollback(program=1, op=2, branch=0, to_op=1), gen(3))
    first, second = world.sent(rt.Generate)
    assert first.sampling.seed != second.sampling.seed


def test_rollback_behind_a_failure_that_it_does_not_reach_is_skipped() -> None:
    world = opened()
    world.send(append(0, "a"), gen(1, temperature=7.0), append(2, "b"), wire.Rollback(program=1, op=3, branch=0, to_op=2), gen(4))
    assert world.one(wire.Failed, op=4).code == "skipped"


@pytest.mark.parametrize("to_op", [0, 2, 77])
def test_rollback_to_no_op_of_the_branch_fails(to_op: int) -> None:
    world = opened()
    world.send(wire.Fork(program=1, op=0, branch=0, first=1, count=1), append(1, "a", branch=1))
    world.send(wire.Rollback(program=1, op=2, branch=1, to_op=to_op))
    assert world.one(wire.Failed, op=2).code == "unknown_op"


def test_cancel_acts_at_once_and_answers_every_value() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "a"), gen(1), append(2, "b"), gen(3), wire.Fork(program=1, op=4, branch=0, first=1, count=1))
    world.send(gen(5, branch=1))
    world.send(wire.Cancel(program=1, branches=(0,)))
    assert [world.one(wire.Failed, op=op).code for op in (1, 3, 5)] == ["cancelled", "cancelled", "skipped"]
    assert world.sent(rt.Cancel)[0].request_ids == (world.sent(rt.Generate)[0].request_id,)
    assert not world.of(wire.Done)
    world.send(gen(6))
    assert world.one(wire.Failed, op=6).code == "skipped"
    world.runtime.hold = False
    world.send(wire.Rollback(program=1, op=7, branch=0, to_op=1), gen(8))
    assert world.one(wire.Done, op=8).usage.prompt_tokens == 1


def test_cancel_of_an_idle_branch_does_nothing() -> None:
    world = opened().send(append(0, "a"), wire.Cancel(program=1, branches=(0,)), gen(1))
    assert world.one(wire.Done)


def test_drop_forgets_branches_and_tells_the_runtime() -> None:
    world = opened()
    world.send(append(0, "a"), wire.Fork(program=1, op=1, branch=0, first=1, count=3))
    world.runtime.hold = True
    world.send(gen(2, branch=1), wire.Drop(program=1, branches=(1, 2, 3)))
    assert world.one(wire.Failed, op=2).code == "cancelled"
    assert world.sent(rt.Drop)[0].branch_ids == world.sent(rt.Fork)[0].child_ids
    world.send(gen(3, branch=1))
    assert world.one(wire.Failed, op=3).message == "branch 1 was dropped"
    world.send(wire.Fork(program=1, op=4, branch=0, first=3, count=1))
    assert world.one(wire.Failed, op=4).code == "duplicate_branch"


def test_a_child_dropped_before_its_fork_runs_is_never_born() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(
        append(0, "a"), gen(1), wire.Fork(program=1, op=2, branch=0, first=1, count=2), wire.Drop(program=1, branches=(1,))
    )
    world.runtime.answer_all()
    world.settle()
    assert len(world.sent(rt.Fork)[0].child_ids) == 1


def test_close_ends_everything_in_silence() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "a"), gen(1), wire.Close(program=1))
    assert world.sent(rt.Cancel)
    assert world.sent(rt.Drop)
    assert not world.of(wire.Failed)
    services = world.core.services
    assert (services.admission.num_programs, services.admission.num_queued, services.tasks) == (0, 0, {})
    world.send(gen(2))
    assert world.one(wire.Failed, op=2).code == "unknown_program"


def test_wrong_numbers_get_clear_answers() -> None:
    world = opened()
    world.send(append(3, "a"), gen(3), gen(4, 0), gen(5, 0), gen(6, branch=9), gen(7, program=8))
    world.send(wire.Fork(program=1, op=8, branch=0, first=0, count=1), wire.Fork(program=1, op=9, branch=0, first=1, count=10**9))
    codes = {failed.op: failed.code for failed in world.of(wire.Failed)}
    assert codes == {
        3: "op_order",
        5: "duplicate_variable",
        6: "unknown_branch",
        7: "unknown_program",
        8: "duplicate_branch",
        9: "invalid_value",
    }
    world.send(wire.Open(program=1))
    assert world.one(wire.Refused).code == "duplicate_program"
    assert world.one(wire.Done, op=4)


def test_programs_belong_to_their_client() -> None:
    world = opened()
    world.send(wire.Hello(version=1), wire.Open(program=1), client=b"d")
    world.send(append(0, "secret"))
    world.send(gen(0), wire.Close(program=1), client=b"d")
    assert world.one(wire.Failed).code == "empty_prompt"
    world.send(gen(1))
    assert world.one(wire.Done).usage.prompt_tokens == len(encode("secret"))


def test_a_bug_while_handling_one_op_fails_that_op_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = opened()
    world.send(wire.Fork(program=1, op=0, branch=0, first=1, count=1), append(1, "fine"))
    from radixserve_tokenizer.programs.transcript import Transcript

    add = Transcript.add_text

    def broken(self: Transcript, value: str) -> None:
        if value == "boom":
            raise ZeroDivisionError
        add(self, value)

    monkeypatch.setattr(Transcript, "add_text", broken)
    world.send(append(2, "boom", branch=1), gen(3, branch=1), gen(4))
    assert world.one(wire.Failed, op=2).code == "internal"
    assert world.one(wire.Failed, op=3).code == "skipped"
    assert world.one(wire.Done, op=4)
    assert "ZeroDivisionError" in caplog.text


def test_bytes_that_complete_a_character_of_the_prompt_are_generated_text() -> None:
    emoji = "\N{SLICE OF PIZZA}".encode()
    ids = [token(bytes([byte])) for byte in emoji]
    world = opened()
    world.runtime.scripts.append(says([ids[-1]], "!"))
    world.send(append(0, "hello "), append(1, wire.TokenIds(ids=tuple(ids[:-1]))), gen(2, stream=True))
    done = world.one(wire.Done)
    assert done.value == "\N{SLICE OF PIZZA}!"
    assert "".join(delta.text for delta in world.of(wire.Delta)) == done.value


def test_what_a_rollback_took_away_can_not_be_asked_for_again() -> None:
    world = opened()
    world.send(append(0, "hi"), gen(1), append(2, "more"), wire.Rollback(program=1, op=3, branch=0, to_op=1))
    world.send(wire.Rollback(program=1, op=4, branch=0, to_op=3), gen(5))
    assert world.one(wire.Failed, op=4).code == "unknown_op"
    world.send(wire.Rollback(program=1, op=6, branch=0, to_op=1), gen(7))
    assert world.one(wire.Done, op=7).usage.prompt_tokens == 2


def test_a_model_without_a_template_takes_plain_text_and_says_so() -> None:
    world = World(text=TextModel(tokenizer(), None)).send(wire.Open(program=1), append(0, "hi", role="user"), gen(1))
    failed = world.of(wire.Failed)
    assert [(one.op, one.code) for one in failed] == [(0, "no_chat_template"), (1, "skipped")]
    assert "append text without a role" in failed[0].message
    world.send(wire.Rollback(program=1, op=2, branch=0, to_op=0), append(3, "hello"), gen(4))
    assert world.one(wire.Done).value == "ok"
