"""Select and score: methods, bookkeeping, refusals."""

from __future__ import annotations

import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from tests.tokenizer.programs.harness import FakeRuntime, World, append, config, encode, gen, tokenizer


def select(op: int, *options: str, method: wire.ScoreMethod = "mean", branch: int = 0) -> wire.Select:
    return wire.Select(program=1, op=op, branch=branch, var=op, options=options, method=method)


def score(op: int, *options: str, method: wire.ScoreMethod = "mean") -> wire.Score:
    return wire.Score(program=1, op=op, branch=0, var=op, options=options, method=method)


def opened(max_context: int = 4096) -> World:
    world = World(runtime=FakeRuntime(max_context=max_context), settings=config(max_options=8)).send(wire.Open(program=1))
    # A token costs as much as its number of bytes tells; in the empty context "Z" is very likely.
    table = {"A": -1.0, "Z": -2.0, "hello": -2.5, "D": -1.0, "E": -1.0}

    def logprobs(prompt: list[int], ids: tuple[int, ...]) -> tuple[float, ...]:
        texts = [tokenizer().decode([i]) for i in ids]
        if len(prompt) == 1 and prompt[0] == 1:
            return tuple(-0.1 if t == "A" else -5.0 for t in texts)
        return tuple(table.get(t, -0.75) for t in texts)

    world.runtime.score = logprobs
    return world


def test_methods_choose_differently_and_scores_are_filled() -> None:
    world = opened().send(append(0, "xy"))
    options = ("A", "Z", "qqqq")  # one token, one token, four tokens of -0.75
    world.send(score(1, *options, method="sum"), score(2, *options, method="mean"), score(3, *options, method="unconditional"))
    by_sum, by_mean, by_unconditional = world.of(wire.Done)
    assert (by_sum.value, by_mean.value, by_unconditional.value) == ("A", "qqqq", "qqqq")
    assert [s.score for s in by_sum.scores] == [-1.0, -2.0, -3.0]
    assert [s.score for s in by_mean.scores] == [-1.0, -2.0, -0.75]
    assert [s.score for s in by_unconditional.scores] == pytest.approx([-0.9, 3.0, 17.0])
    assert [s.num_tokens for s in by_mean.scores] == [1, 1, 4]
    assert all(s.option == option for s, option in zip(by_sum.scores, options, strict=True))


def test_score_leaves_the_branch_and_select_appends_the_winner() -> None:
    world = opened().send(append(0, "xy"), score(1, "A", "Z"), gen(2))
    assert world.one(wire.Done, op=1).num_branch_tokens == 2
    assert world.sent(rt.Generate)[0].base == rt.Base(length=2, hash=rt.log_hash(encode("xy")))
    world.send(select(3, "A", "Z"), append(4, wire.VarRef(var=3)), gen(5))
    done = world.one(wire.Done, op=3)
    assert (done.value, done.token_ids) == ("A", encode("A"))
    assert world.prompt_text() == "xyokAA"


def test_score_in_a_chat_opens_a_turn_for_itself_alone() -> None:
    world = opened().send(append(0, "hi", role="user"), score(1, "A", "Z"), append(2, "more", role="user"), gen(3))
    prompts = [tokenizer().decode(p, skip_special=False) for p in world.runtime.prompts.values()]
    assert prompts[0] == "<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    assert prompts[1] == "<|start|>user\nhi<|end|>\n<|start|>user\nmore<|end|>\n<|start|>assistant\n"
    assert len(world.sent(rt.Drop)) == 1
    world.send(select(4, "A", "Z"))
    assert world.prompt_text().endswith("<|start|>assistant\nok")


def test_the_unconditional_branch_is_dropped_again() -> None:
    world = opened().send(append(0, "xy"), select(1, "A", "Z", method="unconditional"))
    assert world.one(wire.Done).value == "Z"
    conditional, alone = world.sent(rt.Score)
    assert alone.base.new_ids == (1,)
    assert world.sent(rt.Drop)[0].branch_ids == (alone.branch_id,)
    assert conditional.branch_id in world.runtime.logs
    assert not world.core.services.tasks


def test_duplicates_are_fine_and_the_first_wins() -> None:
    world = opened().send(append(0, "xy"), select(1, "A", "A", "D"))
    done = world.one(wire.Done)
    assert (done.value, len(done.scores)) == ("A", 3)


def test_not_a_number_never_wins() -> None:
    world = opened()
    world.runtime.score = lambda prompt, ids: tuple(float("nan") if ids == encode("A") else -9.0 for _ in ids)
    assert world.send(append(0, "xy"), select(1, "A", "D")).one(wire.Done).value == "D"


@pytest.mark.parametrize(
    ("options", "names"), [((), "between 1 and 8"), (("a",) * 9, "between 1 and 8"), (("a", ""), "option 1 ('')")]
)
def test_bad_options_are_refused(options: tuple[str, ...], names: str) -> None:
    world = opened().send(append(0, "xy"), select(1, *options), gen(2))
    failed = world.one(wire.Failed, op=1)
    assert (failed.status, failed.param) == (400, "options")
    assert names in failed.message
    assert world.one(wire.Failed, op=2).code == "skipped"


def test_context_and_empty_prompt() -> None:
    world = opened(max_context=8).send(select(0, "A"))
    assert world.one(wire.Failed, op=0).code == "empty_prompt"
    world.send(wire.Rollback(program=1, op=1, branch=0, to_op=0), append(2, "x" * 6), score(3, "A"), select(4, "qqq"))
    assert world.one(wire.Done, op=3)
    assert world.one(wire.Failed, op=4).message.startswith("This model's maximum context length is 8 tokens. However, ")
    assert world.core.services.admission.num_queued == 0


def test_a_scoring_can_be_cancelled() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "xy"), score(1, "A", method="unconditional"), wire.Cancel(program=1, branches=(0,)))
    assert world.one(wire.Failed).code == "cancelled"
    assert len(world.sent(rt.Cancel)[0].request_ids) == 2
    world.runtime.answer_all()
    world.settle()
    assert not world.of(wire.Done)


def test_a_result_of_another_shape_fails_the_op_alone() -> None:
    world = opened()
    world.runtime.score = lambda prompt, ids: (-1.0,) * 9
    world.send(append(0, "xy"), score(1, "A"))
    assert (world.one(wire.Failed).code, world.one(wire.Failed).status) == ("internal", 500)
