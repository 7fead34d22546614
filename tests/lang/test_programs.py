"""Programs against a scripted server: what they send, what they wait for, what they raise."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

import radixserve_lang as rs
from radixserve_tokenizer.protocol import (
    Append,
    Cancel,
    Close,
    Constraint,
    Credit,
    Done,
    Drop,
    Failed,
    Fork,
    Gen,
    Open,
    Refused,
    Sampling,
    Score,
    Select,
    Text,
    VarRef,
)
from tests.lang.fake_server import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lang.fake_server import FakeServer

SYS = rs.system("Be brief.")


def failed(gen: Gen, code: str = "boom", **more: Any) -> Failed:
    return Failed(program=gen.program, op=gen.op, var=gen.var, code=code, message=f"{code} happened", **more)


# ---- what goes over the wire ---------------------------------------------------------------------------------------


def test_a_chat_sends_only_what_is_new(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def chat(s: rs.State, turns: list[str]) -> list[str]:
        s += SYS
        answers: list[str] = []
        for turn in turns:
            s += rs.user(turn)
            answers.append(s.gen(max_tokens=16).value)
        return answers

    server.answer = lambda gen: f"answer {gen.var}"
    run = chat.run(["hello", "again"], engine=engine)
    assert run.value == ["answer 0", "answer 1"]
    server.wait_for(Close)
    first, second, last = server.op_frames()
    assert [type(message) for message in first] == [Open, Append, Append, Gen]
    assert first[1] == Append(program=1, op=0, branch=0, parts=(Text(text="Be brief."),), role="system")
    assert isinstance(first[3], Gen)
    assert first[3].sampling == Sampling(max_tokens=16)
    assert [type(message) for message in second] == [Append, Gen]
    assert [type(message) for message in last] == [Close]
    assert run.usage.num_ops == 2
    assert run.usage.cached_tokens == 14
    assert run.usage.computed_tokens == 6


def test_options_reach_the_open(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def one(s: rs.State) -> str:
        return s.gen().value

    one.using(engine=engine, priority="interactive", cache_salt="x").run(seed=5)
    (message,) = server.of(Open)
    assert (message.seed, message.priority, message.cache_salt, message.credits) == (5, "interactive", "x", 0)


def test_appends_take_text_messages_values_and_lists(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def mixed(s: rs.State) -> None:
        s += "raw"
        s += (SYS, [rs.user("a"), "tail"])
        v = s.gen()
        s += v
        s += rs.user("Merge:\n", v, "!")
        s.gen().settle()

    mixed.run(engine=engine)
    server.wait_for(Close)
    appends = [(message.role, message.parts) for message in server.of(Append)]
    assert appends == [
        ("", (Text(text="raw"),)),
        ("system", (Text(text="Be brief."),)),
        ("user", (Text(text="a"),)),
        ("", (Text(text="tail"),)),
        ("", (VarRef(var=0),)),
        ("user", (Text(text="Merge:\n"), VarRef(var=0), Text(text="!"))),
    ]
    assert len(server.op_frames()) == 2  # all of it, and the close


def test_sampling_and_constraints(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def all_of_them(s: rs.State) -> None:
        s.gen(temperature=0, top_p=0.5, stop="\n", logit_bias={3: -1.0}, stop_token_ids=[1], logprobs=2, seed=3)
        s.gen(stop=["a", "b"], logprobs=None)
        s.gen(regex="a+")
        s.gen(grammar='root ::= "x"')
        s.gen(json={"type": "integer"}).settle()

    server.answer = lambda gen: "1"
    all_of_them.run(engine=engine)
    gens: list[Gen] = server.of(Gen)
    assert gens[0].sampling == Sampling(
        temperature=0, top_p=0.5, stop=("\n",), logit_bias={3: -1.0}, stop_token_ids=(1,), logprobs=2, seed=3
    )
    assert gens[1].sampling == Sampling(stop=("a", "b"))
    constraints = [gen.constraint for gen in gens[2:]]
    assert constraints == [
        Constraint(kind="regex", source="a+"),
        Constraint(kind="ebnf", source='root ::= "x"'),
        Constraint(kind="json_schema", source='{"type": "integer"}'),
    ]


def test_a_wide_fork_is_one_message_and_no_thread(engine: Engine, server: FakeServer) -> None:
    threads: list[int] = []

    @rs.function
    def wide(s: rs.State) -> int:
        s += SYS
        with s.fork(64) as branches:
            values = [b.gen() for b in branches]
            threads.append(threading.active_count())
            return sum(len(v.value) for v in values)

    before = threading.active_count()
    assert wide.run(engine=engine).value == 128
    assert threads == [before]  # the client's own thread was there already
    assert server.of(Fork) == [Fork(program=1, op=1, branch=0, first=1, count=64)]
    assert [gen.branch for gen in server.of(Gen)] == list(range(1, 65))
    assert len(server.op_frames()[0]) == 1 + 1 + 1 + 64


def test_paths_and_numbers_of_nested_forks(engine: Engine, server: FakeServer) -> None:
    paths: list[tuple[int, ...]] = []

    @rs.function
    def nested(s: rs.State) -> None:
        a = s.fork(2)
        b = a[1].fork(2)
        c = s.fork(1)
        assert len(s.fork(0)) == 0
        paths.extend(state.path for state in (s, *a, *b, *c))
        c[0].gen().settle()

    nested.run(engine=engine)
    assert paths == [(), (0,), (1,), (1, 0), (1, 1), (2,)]
    assert [(fork.branch, fork.first, fork.count) for fork in server.of(Fork)] == [(0, 1, 2), (2, 3, 2), (0, 5, 1)]


def test_map_reduce_joins_on_the_server(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def summarise(s: rs.State, chunks: list[str]) -> str:
        s += SYS
        with s.fork(len(chunks)) as branches:
            parts: list[rs.Var[str]] = []
            for b, chunk in zip(branches, chunks, strict=True):
                b += rs.user("Summarise:\n", chunk)
                parts.append(b.gen(max_tokens=120))
            s += rs.user("Merge:\n", *parts)
            return s.gen(max_tokens=300).value

    assert summarise.run(["x", "y", "z"], engine=engine).value == "ok"
    server.wait_for(Close)
    stretch, *_ = server.op_frames()
    assert server.of(Drop) == [Drop(program=1, branches=(1, 2, 3))]
    merge = [message for message in stretch if isinstance(message, Append)][-1]
    assert merge.parts == (Text(text="Merge:\n"), VarRef(var=0), VarRef(var=1), VarRef(var=2))


# ---- choices -------------------------------------------------------------------------------------------------------


def test_select_and_score(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def choose(s: rs.State) -> tuple[str, dict[str, float], dict[str, float]]:
        picked = s.select(["yes", "no"], method="sum")
        marks = s.score([" good", " bad"])
        return picked.value, picked.scores, marks.value

    run = choose.run(engine=engine)
    assert run.value == ("yes", {"yes": 0.0, "no": -1.0}, {" good": 0.0, " bad": -1.0})
    (select,), (score,) = server.of(Select), server.of(Score)
    assert (select.options, select.method) == (("yes", "no"), "sum")
    assert score.method == "mean"


@pytest.mark.parametrize("options", ["yes", [], ["a", "a"], [1]])
def test_wrong_options(engine: Engine, options: Any) -> None:
    @rs.function
    def choose(s: rs.State) -> str:
        return s.select(options).value

    with pytest.raises((TypeError, ValueError), match=r"select\(\)"):
        choose.run(engine=engine)


# ---- types ---------------------------------------------------------------------------------------------------------


class Answer(BaseModel):
    steps: list[str]
    answer: int


def test_json_gives_a_value_of_the_type(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def typed(s: rs.State) -> tuple[Answer, list[int], Any]:
        return s.gen(json=Answer).value, s.gen(json=list[int]).value, s.gen(json={"type": "object"}).value

    server.answer = lambda gen: ['{"steps": [], "answer": 4}', "[1, 2]", '{"a": null}'][gen.var]
    assert typed.run(engine=engine).value == (Answer(steps=[], answer=4), [1, 2], {"a": None})
    schema = server.of(Gen)[0].constraint
    assert '"answer"' in schema.source
    assert schema.kind == "json_schema"


def test_text_that_does_not_fit_is_an_error_with_the_text(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def typed(s: rs.State) -> Answer:
        v = s.gen(json=Answer, max_tokens=3)
        assert v.text == '{"steps'
        return v.value

    def cut(gen: Gen) -> Done:
        return Done(program=gen.program, op=gen.op, var=gen.var, value='{"steps', finish_reason="length")

    server.answer = cut
    with pytest.raises(rs.InvalidValueError, match=r"cut at max_tokens") as caught:
        typed.run(engine=engine)
    assert caught.value.partial == '{"steps'
    assert "test_programs.py" in caught.value.where
    assert caught.value.where.endswith("in typed")


def test_wrong_arguments_of_gen(engine: Engine) -> None:
    @rs.function
    def wrong(s: rs.State, arguments: dict[str, Any]) -> None:
        s.gen(**arguments)

    for arguments, words in [
        ({"temprature": 1}, "unknown arguments: temprature"),
        ({"regex": "a", "json": int}, "one of json, regex, grammar and tools, not json and regex"),
        ({"json": object()}, "can't be generated"),
        ({"temperature": "hot"}, r"Gen can't be sent: Expected `float`, got `str`.*temperature"),
        ({"seed": 2**70}, "Gen can't be sent"),
        ({"stop": [3]}, r"Gen can't be sent.*stop"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            wrong.run(arguments, engine=engine)


def test_a_var_is_not_its_value(engine: Engine) -> None:
    @rs.function
    def misuse(s: rs.State) -> None:
        v = s.gen()
        for wrong in (lambda: f"{v}", lambda: str(v), lambda: bool(v), lambda: v == "ok", lambda: f"{v}"):
            with pytest.raises(rs.VarInTextError, match="pass the Var itself"):
                wrong()
        assert v in [v]
        assert "gen at" in repr(v)
        with pytest.raises(TypeError, match=r"pass \*parts"):
            rs.user("x", [v])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="str"):
            s += 3  # type: ignore[arg-type]
        v.settle()

    misuse.run(engine=engine)


def test_a_var_of_another_program_is_refused(engine: Engine) -> None:
    @rs.function
    def first(s: rs.State) -> rs.Var[str]:
        return s.gen()

    @rs.function
    def second(s: rs.State, v: rs.Var[str]) -> None:
        s += v

    v = first.run(engine=engine).value
    assert v.value == "ok"
    with pytest.raises(ValueError, match="another program"):
        second.run(v, engine=engine)


# ---- forks and cancelling ------------------------------------------------------------------------------------------


def test_leaving_a_fork_drops_what_still_runs(engine: Engine, server: FakeServer) -> None:
    kept: list[rs.Var[str]] = []

    @rs.function
    def vote(s: rs.State) -> str:
        with s.fork(3) as branches:
            inner = branches[2].fork(2)
            kept.extend(b.gen() for b in (*branches, *inner))
            winner = next(iter(rs.as_completed(kept)))
            won = winner.value
        with pytest.raises(rs.OpCancelledError, match="its fork block was left"):
            _ = kept[0].value
        with pytest.raises(rs.BranchDroppedError, match="its fork block was left"):
            branches[0].gen()
        s += rs.user(kept[1])  # done: its text, since the server has forgotten the branch
        s += s.gen()
        return won

    server.answer = lambda gen: "won" if gen.branch in (0, 2) else None
    assert vote.run(engine=engine).value == "won"
    server.wait_for(Close)
    assert server.of(Drop) == [Drop(program=1, branches=(1, 2, 3, 4, 5))]
    assert Append(program=1, op=7, branch=0, parts=(Text(text="won"),), role="user") in server.messages


def test_an_exception_leaves_the_fork_too(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def broken(s: rs.State) -> None:
        with s.fork(2) as branches:
            branches[0].gen()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        broken.run(engine=engine)
    server.wait_for(Close)
    assert server.of(Drop) == [Drop(program=1, branches=(1, 2))]


def test_a_bare_fork_lives_to_the_end(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def bare(s: rs.State) -> str:
        branches = s.fork(2)
        return "".join(b.gen().value for b in branches)

    assert bare.run(engine=engine).value == "okok"
    server.wait_for(Close)
    assert not server.of(Drop)


def test_cancel_ends_a_branch_and_its_forks(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def cancel(s: rs.State) -> None:
        (branch,) = s.fork(1)
        v = branch.fork(1)[0].gen()
        branch.cancel()
        with pytest.raises(rs.OpCancelledError, match=r"cancelled at .*in cancel"):
            _ = v.value
        with pytest.raises(rs.BranchDroppedError):
            branch.gen()

    server.answer = lambda gen: None
    cancel.run(engine=engine)
    server.wait_for(Close)
    assert server.of(Cancel) == [Cancel(program=1, branches=(1, 2))]


def test_what_runs_at_the_end_is_closed_and_unreadable(engine: Engine, server: FakeServer) -> None:
    kept: list[rs.Var[str]] = []
    states: list[rs.State] = []

    @rs.function
    def early(s: rs.State) -> int:
        kept.append(s.gen())
        states.append(s)
        return 1

    server.answer = lambda gen: None
    assert early.run(engine=engine).value == 1
    with pytest.raises(rs.ProgramEndedError, match="its program has ended"):
        _ = kept[0].value
    with pytest.raises(rs.ProgramEndedError, match="its program has ended"):
        states[0].gen()


# ---- errors --------------------------------------------------------------------------------------------------------


def test_an_error_is_raised_at_the_read_with_its_place(engine: Engine, server: FakeServer) -> None:
    reached: list[str] = []

    @rs.function
    def fails(s: rs.State) -> str:
        v = s.gen()
        reached.append("after gen")
        return v.value

    server.answer = lambda gen: failed(gen, partial="some te", status=400, param="top_p")
    with pytest.raises(rs.OpError, match=r"gen at .*test_programs\.py:\d+ in fails failed \(boom\)") as caught:
        fails.run(engine=engine)
    assert reached == ["after gen"]
    assert (caught.value.code, caught.value.status, caught.value.partial, caught.value.param) == ("boom", 400, "some te", "top_p")
    assert "some te" in str(caught.value)


def test_a_skipped_op_names_what_failed_before_it(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def poisoned(s: rs.State) -> str:
        s.gen(max_tokens=1)
        return s.gen().value

    def answer(gen: Gen) -> Any:
        if gen.op == 0:
            return failed(gen)
        return Failed(program=gen.program, op=gen.op, var=gen.var, code="skipped", message="skipped: op 0 failed")

    server.answer = answer
    with pytest.raises(rs.OpSkippedError, match="boom happened") as caught:
        poisoned.run(engine=engine)
    assert isinstance(caught.value.__cause__, rs.OpError)
    assert caught.value.__cause__.code == "boom"


def test_a_fork_that_fails_is_what_its_branches_report(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def too_wide(s: rs.State) -> str:
        with s.fork(3) as branches:
            return branches[1].gen().value

    def answer(gen: Gen) -> Failed:
        server.send(Failed(program=gen.program, op=0, code="invalid_value", message="too many"))
        server.send(Failed(program=gen.program, op=-1, code="unknown_branch", message="branch 1 is not known"))
        unknown = Failed(program=gen.program, op=gen.op, var=gen.var, code="unknown_branch", message="branch 2 is not known")
        server.send(unknown)
        return Failed(program=gen.program, op=-1, code="unknown_branch", message="branch 2 is not known")

    server.answer = answer
    with pytest.raises(rs.OpSkippedError, match=r"fork at .*in too_wide failed \(invalid_value\): too many"):
        too_wide.run(engine=engine)


def test_threads_of_a_program_keep_its_ops_in_order(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def threaded(s: rs.State) -> None:
        branches = s.fork(8)

        def work(b: rs.State) -> None:
            for _ in range(50):
                b += "x"
                b.gen()

        threads = [threading.Thread(target=work, args=(b,)) for b in branches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        s.gen().settle()

    threaded.run(engine=engine)
    server.wait_for(Close)
    ops = [message.op for message in server.messages if isinstance(message, Append | Gen | Fork)]
    assert ops == list(range(802))
    assert [gen.var for gen in server.of(Gen)] == list(range(401))


def test_a_failure_nobody_read_is_raised_at_the_end(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def careless(s: rs.State) -> str:
        lost = s.fork(1)[0].gen()
        value = s.gen().value
        while not lost.done:
            time.sleep(0.001)
        return value

    @rs.function
    def careful(s: rs.State) -> str:
        with s.fork(1) as (branch,):
            lost = branch.gen()
            value = s.gen().value
            while not lost.done:
                time.sleep(0.001)
        return value

    server.answer = lambda gen: failed(gen) if gen.branch == 1 else "fine"
    with pytest.raises(rs.OpError, match="boom"):
        careless.run(engine=engine)
    assert careful.run(engine=engine).value == "fine"


def test_refused(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def one(s: rs.State) -> str:
        return s.gen().value

    server.on_open = lambda message: Refused(
        program=message.program, status=503, code="overloaded", message="full", retry_after_s=2
    )
    server.answer = lambda gen: None
    with pytest.raises(rs.ProgramRefusedError, match=r"503 overloaded\): full Try again in 2 s") as caught:
        one.run(engine=engine)
    assert caught.value.retry_after_s == 2
    assert "waiting for gen at" in str(caught.value)


def test_a_server_that_goes_away_names_the_op_and_the_text(
    engine: Engine, server: FakeServer, start_server: Callable[..., FakeServer]
) -> None:
    @rs.function
    def one(s: rs.State) -> str:
        v = s.gen()
        server.wait_for(Open, 1) if v.done else threading.Timer(0.05, server.stop).start()
        return v.value

    server.answer = lambda gen: None
    with pytest.raises(rs.ServerGoneError, match=r"(?s)lost.*waiting for gen at .*in one"):
        one.run(engine=engine)
    second = start_server()
    assert one.run(engine=engine).value == "ok"
    assert isinstance(second.of(Open)[0], Open)


def test_no_engine_and_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    @rs.function
    def one(s: rs.State) -> str:
        return s.gen().value

    monkeypatch.delenv("RADIXSERVE_URL", raising=False)
    with pytest.raises(rs.ConnectionFailedError, match="RADIXSERVE_URL"):
        one.run()


def test_the_environment_names_the_default(monkeypatch: pytest.MonkeyPatch, server: FakeServer, url: str) -> None:
    @rs.function
    def one(s: rs.State) -> str:
        return s.gen().value

    monkeypatch.setenv("RADIXSERVE_URL", url)
    monkeypatch.setenv("RADIXSERVE_API_KEY", "secret")
    before = threading.active_count()
    assert one.run().value == "ok"
    assert server.of(Open)[0].api_key == "secret"
    assert threading.active_count() == before
    with rs.connect() as remote:
        assert remote.model.name == "fake"


def test_connect_says_who_did_not_answer(url: str) -> None:
    before = threading.active_count()
    with pytest.raises(rs.ConnectionFailedError, match=r"no server answered at ipc://.* within 0\.1 s"):
        rs.connect(url, timeout_s=0.1)
    assert threading.active_count() == before


def test_what_is_no_program() -> None:
    with pytest.raises(TypeError, match="first parameter"):

        @rs.function  # type: ignore[arg-type]
        def nothing() -> None: ...

    with pytest.raises(TypeError, match="parameter named seed"):

        @rs.function
        def taken(s: rs.State, seed: int) -> None: ...

    with pytest.raises(TypeError, match="yields"):

        @rs.function
        def yields(s: rs.State) -> Any:
            yield 1


def test_ctrl_c_ends_a_read_and_the_program(server: FakeServer, url: str) -> None:
    # A job that a shell put into the background is started with SIGINT ignored, and so are its children.
    code = f"""
import signal
import radixserve_lang as rs
signal.signal(signal.SIGINT, signal.default_int_handler)
@rs.function
def stuck(s: rs.State) -> str:
    return s.gen().value
with rs.connect({url!r}) as e:
    try:
        stuck.run(engine=e)
    except KeyboardInterrupt:
        print("interrupted")
"""
    server.answer = lambda gen: None
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    server.wait_for(Gen, timeout_s=60)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[0].strip() == "interrupted"
    server.wait_for(Close)


# ---- programs in programs, traces ----------------------------------------------------------------------------------


def test_a_program_is_a_part_of_another(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def ask(s: rs.State, question: str) -> str:
        s += rs.user(question)
        return s.gen().value

    @rs.function
    def twice(s: rs.State) -> str:
        return ask(s, "a") + ask(s, "b")

    assert twice.run(engine=engine).value == "okok"
    assert len(server.of(Open)) == 1
    assert twice.__name__ == "twice"


def test_the_trace_draws_the_tree(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def tree(s: rs.State) -> str:
        s += SYS
        with s.fork(2) as branches:
            slow = branches[1].gen()
            part = branches[0].gen()
            s += rs.user("Merge: ", part)
            result = s.select(["ok", "no"]).value
            assert not slow.done
        return result

    server.answer = lambda gen: "a part" if gen.branch == 1 else None
    trace = tree.run(engine=engine).trace
    drawn = str(trace)
    for line in [
        "system  Be brief.",
        "fork into 2",
        "branch 0",
        "gen  10 prompt (7 cached) + 2 out  a part",
        "gen  cancelled",
        "user  Merge: a part",
        "select",
        "no -1.00]",
    ]:
        assert line in drawn, drawn
    assert [step.kind for step in trace.root.steps] == ["system", "fork", "user", "select"]
    assert trace.root.steps[1].branches[1].steps[0].status == "cancelled"


# ---- streams -------------------------------------------------------------------------------------------------------


def test_iterating_a_var_brings_deltas_and_nothing_else_does(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def silent(s: rs.State) -> str:
        return s.gen().value

    @rs.function
    def loud(s: rs.State) -> list[str]:
        v = s.gen()
        first = list(v)
        assert "".join(first) == v.value == "".join(v)
        return first

    server.answer = lambda gen: ["one ", "two ", "three"]
    assert silent.run(engine=engine).value == "one two three"
    assert not server.of(Credit)
    assert "".join(loud.run(engine=engine).value) == "one two three"
    assert server.of(Credit)[0].amount == 64


def test_credits_go_back_while_somebody_reads(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def long(s: rs.State) -> int:
        waits = s.fork(1)[0].gen()
        total = 0
        for piece in waits:
            total += len(piece)
        return total

    server.answer = lambda gen: None
    thread = threading.Timer(0.05, lambda: (server.wait_for(Credit), server.finish(0, "x" * 900)))
    thread.start()
    assert long.run(engine=engine).value == 900
    thread.join()
    server.wait_for(Close)
    assert sum(credit.amount for credit in server.of(Credit)) > 64


def test_iteration_raises_after_the_text(engine: Engine, server: FakeServer) -> None:
    pieces: list[str] = []

    @rs.function
    def fails(s: rs.State) -> None:
        pieces.extend(s.gen())

    server.answer = lambda gen: failed(gen)
    with pytest.raises(rs.OpError, match="boom"):
        fails.run(engine=engine)


def test_stream_gives_the_root_s_text_in_order(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def talk(s: rs.State, name: str) -> str:
        s += rs.user(name)
        a = s.gen()
        s.fork(1)[0].gen().settle()
        s.score(["x"]).settle()
        s.select(["|yes", "no"])
        s.gen().settle()
        return a.value

    server.answer = lambda gen: ["(", f"{gen.op}", ")"]
    stream = talk.stream("bob", engine=engine)
    with pytest.raises(RuntimeError, match="not been read"):
        _ = stream.run
    assert "".join(stream) == "(1)|yes(6)"
    assert stream.run.value == "(1)"
    with pytest.raises(RuntimeError, match="once"):
        list(stream)


def test_a_stream_raises_what_its_program_raises(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def fails(s: rs.State) -> None:
        s.gen().settle()
        raise KeyError("mine")

    pieces: list[str] = []
    with pytest.raises(KeyError, match="mine"):
        pieces.extend(fails.stream(engine=engine))
    assert "".join(pieces) == "ok"


def test_leaving_a_stream_ends_its_program(engine: Engine, server: FakeServer) -> None:
    raised = threading.Event()

    @rs.function
    def endless(s: rs.State) -> None:
        s.gen().settle()
        try:
            _ = s.gen().value
        except rs.ProgramEndedError:
            raised.set()
            raise

    server.answer = lambda gen: "some text" if gen.op == 0 else None
    for _ in endless.stream(engine=engine):
        break
    assert raised.wait(5)
    server.wait_for(Close)


# ---- batches -------------------------------------------------------------------------------------------------------


def test_a_batch_keeps_order_bounds_and_errors(engine: Engine, server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()
    running: list[int] = [0, 0]

    @rs.function
    def work(s: rs.State, text: str, times: int = 1) -> str:
        with lock:
            running[0] += 1
            running[1] = max(running)
        try:
            s += rs.user(text)
            if text == "bad":
                raise ValueError("mine")
            return s.gen().value * times + text
        finally:
            with lock:
                running[0] -= 1

    inputs = ["a", ("b", 2), {"text": "c", "times": 3}, "bad", *map(str, range(30))]
    runs = work.run_batch(inputs, engine=engine, seed=100, concurrency=4, progress=True)
    assert [run.value for run in runs[:3]] == ["oka", "okokb", "okokokc"]
    assert [run.value for run in runs[4:]] == [f"ok{i}" for i in range(30)]
    assert 1 <= running[1] <= 4
    with pytest.raises(ValueError, match="mine"):
        _ = runs[3].value
    assert isinstance(runs[3].error, ValueError)
    assert runs[3].trace.root.steps[0].kind == "user"
    assert sorted(message.seed for message in server.wait_for(Open, 33)) == [i for i in range(100, 134) if i != 103]
    assert "34/34" in capfd.readouterr().err
    assert work.run_batch([], engine=engine) == []
    with pytest.raises(ValueError, match="concurrency"):
        work.run_batch(["a"], engine=engine, concurrency=0)


def test_a_batch_without_a_server_fails_at_once(start_client: Callable[..., rs.Client]) -> None:
    @rs.function
    def one(s: rs.State, text: str) -> str:
        return s.gen().value

    with pytest.raises(rs.ConnectionFailedError):
        one.run_batch(["a"] * 100, engine=Engine(start_client(connect_timeout_s=0.1)), progress=False)


def test_interrupting_a_batch_ends_its_runs(engine: Engine, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    @rs.function
    def stuck(s: rs.State, text: str) -> str:
        if text == "first":
            return "done"
        try:
            return s.gen().value
        except rs.ProgramEndedError:
            ended.append(text)
            raise

    def interrupt(*_: Any) -> None:
        server.wait_for(Gen, 2)
        raise KeyboardInterrupt

    server.answer = lambda gen: None
    monkeypatch.setattr("rich.progress.Progress.advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stuck.run_batch(["first", "a", "b", "c", "d"], engine=engine, concurrency=3, progress=False)
    assert 2 <= len(ended) <= 4
