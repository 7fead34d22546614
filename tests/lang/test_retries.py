"""Values that are judged before anything goes on from them: taken back, tried again, refused for good."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

import radixserve_lang as rs
from radixserve_tokenizer.protocol import (
    Append,
    Close,
    Done,
    Drop,
    Failed,
    Fork,
    Gen,
    Hello,
    Open,
    Refused,
    Rollback,
    Text,
    Tools,
    Usage,
    VarRef,
)
from tests.lang.fake_server import Engine, called

if TYPE_CHECKING:
    from tests.lang.fake_server import FakeServer


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value


def numbers(*texts: str) -> Any:
    """Answers in the order in which gens come."""
    left = list(texts)
    return lambda gen: left.pop(0)


def test_a_refused_value_is_taken_back_and_made_again(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def even(s: rs.State) -> tuple[int, rs.Var[Even]]:
        s += rs.user("q")
        v = s.gen(json=Even, retries=2)
        return v.value.number, v

    server.answer = numbers('{"number": 3}', '{"number": 5}', '{"number": 4}')
    run = even.run(engine=engine, seed=1)
    assert run.value[0] == 4
    assert run.value[1].text == '{"number": 4}'
    assert run.trace.root.steps[1].num_refused == 2
    assert "2 refused" in str(run.trace)
    assert (run.usage.num_ops, run.usage.output_tokens) == (3, 15)  # refused attempts cost too
    server.wait_for(Close)
    sent = [(type(message).__name__, message.op) for message in server.messages if isinstance(message, Append | Gen | Rollback)]
    assert sent == [("Append", 0), ("Gen", 1), ("Rollback", 2), ("Gen", 3), ("Rollback", 4), ("Gen", 5)]
    assert [back.to_op for back in server.of(Rollback)] == [1, 3]
    gens = server.of(Gen)
    assert [gen.var for gen in gens] == [0, 1, 2]
    assert not any(gen.stream for gen in gens)  # what may be taken back is not shown
    assert {gen.sampling.seed for gen in gens} == {None}  # the server draws each by its number on the branch


def test_a_seed_of_its_own_changes_by_attempt(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def even(s: rs.State) -> int:
        return s.gen(json=Even, retries=2, seed=2**63 - 1).value.number

    server.answer = numbers('{"number": 3}', "nonsense", '{"number": 4}')
    assert even.run(engine=engine).value == 4
    assert [gen.sampling.seed for gen in server.of(Gen)] == [2**63 - 1, 0, 1]


def test_what_follows_waits_for_the_verdict_and_refers_to_the_last_attempt(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def joined(s: rs.State) -> str:
        (other,) = s.fork(1)
        v = s.gen(json=Even, retries=1)
        s += rs.user("go on")
        after = s.gen()
        other += rs.user("Merge:", v)
        merged = other.gen()
        free = s.fork(1)[0].gen()
        return f"{after.value} {merged.value} {free.value} {v.value.number}"

    def answer(gen: Gen) -> str:
        if gen.constraint is None:
            return f"b{gen.branch}"
        assert not any(isinstance(message, Append) for message in server.messages)  # held back until the verdict
        return '{"number": 3}' if gen.var == 0 else '{"number": 8}'

    server.answer = answer
    assert joined.run(engine=engine).value == "b0 b1 b2 8"
    server.wait_for(Close)
    ops = [message.op for message in server.messages if hasattr(message, "op")]
    assert ops == sorted(ops)  # numbered as they are sent
    (merge,) = [append for append in server.of(Append) if append.branch == 1]
    accepted = [gen for gen in server.of(Gen) if gen.constraint is not None][-1]
    assert merge.parts == (Text(text="Merge:"), VarRef(var=accepted.var))
    assert [gen.branch for gen in server.of(Gen)] == [0, 0, 0, 1, 2] or len(server.of(Gen)) == 5


def test_other_branches_do_not_wait(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def beside(s: rs.State) -> tuple[str, int]:
        (other,) = s.fork(1)
        v = s.gen(json=Even, retries=1)
        text = other.gen().value  # while v is still running
        server.finish(0, '{"number": 2}')
        return text, v.value.number

    server.answer = lambda gen: None if gen.constraint is not None else "beside"
    assert beside.run(engine=engine).value == ("beside", 2)


def test_refused_for_good(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def fails(s: rs.State) -> str:
        s += rs.user("q")
        (other,) = s.fork(1)
        v = s.gen(json=Even, retries=1)
        s += " and so on"
        late = s.gen()
        other += v
        elsewhere = other.gen()
        child = s.fork(1)[0].gen()
        with pytest.raises(rs.OpSkippedError, match=r"gen at .*in fails failed \(skipped\)") as skipped:
            _ = elsewhere.value
        assert isinstance(skipped.value.__cause__, rs.InvalidValueError)
        with pytest.raises(rs.InvalidValueError) as caught:
            _ = v.value
        assert [attempt.text for attempt in caught.value.attempts] == ['{"number": 3}', '{"number": 5}']
        assert all("must be even" in attempt.problem for attempt in caught.value.attempts)
        for lost in (late, child):
            with pytest.raises(rs.OpSkippedError, match="must be even"):
                _ = lost.value
        s += rs.user("then in words")  # the error was read: the branch goes on from before the gen
        return s.gen().value

    server.answer = numbers('{"number": 3}', '{"number": 5}', "four")
    run = fails.run(engine=engine)
    assert run.value == "four"
    server.wait_for(Close)
    kinds = [type(message) for message in server.messages if not isinstance(message, Hello | Open)]
    assert kinds == [Append, Fork, Gen, Rollback, Gen, Rollback, Append, Gen, Close]
    assert [append.parts[0].text for append in server.of(Append)] == ["q", "then in words"]
    assert "failed" in str(run.trace)


def test_what_is_written_before_the_error_is_read_does_not_run_however_late(engine: Engine, server: FakeServer) -> None:
    """Whether the verdict had come by then is a matter of time; what the program does must not be."""

    @rs.function
    def late(s: rs.State) -> str:
        (other,) = s.fork(1)
        v = s.gen(json=Even, validate=lambda value: False)
        v.flush()
        while not v.done:
            pass
        after = s.gen()
        other += rs.user(v)
        elsewhere = other.gen()
        for lost in (after, elsewhere):
            with pytest.raises(rs.OpSkippedError, match=r"validate\(\) returned False"):
                _ = lost.value
        # The cause has been told with them.
        return s.gen().value

    server.answer = numbers('{"number": 2}', "fresh")
    assert late.run(engine=engine).value == "fresh"
    server.wait_for(Close)
    assert not server.of(Append)


def test_the_message_of_a_value_refused_for_good(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def fails(s: rs.State) -> Even:
        return s.gen(json=Even, retries=2, temperature=0).value

    server.answer = lambda gen: '{"number": 3}'
    with pytest.raises(rs.InvalidValueError) as caught:
        fails.run(engine=engine)
    message = str(caught.value)
    assert message.startswith("gen at ")
    assert "test_retries.py" in message
    assert "in fails failed (invalid_value): none of 3 attempts gave a valid value" in message
    assert "raise the temperature" in message
    assert "must be even" in message
    assert """text so far: '{"number": 3}'""" in message


# ---- validate ------------------------------------------------------------------------------------------------------


def test_validate_runs_in_the_program_and_not_on_the_io_thread(engine: Engine, server: FakeServer) -> None:
    threads: list[threading.Thread] = []
    before = threading.active_count()

    def check(text: str) -> bool:
        threads.append(threading.current_thread())
        assert threading.active_count() == before
        return text == "good"

    @rs.function
    def judged(s: rs.State) -> str:
        v = s.gen(validate=check, retries=3)
        after = s.gen()
        return after.value + v.value  # reading what is held behind it judges it

    server.answer = numbers("bad", "worse", "good", "after ")
    assert judged.run(engine=engine).value == "after good"
    assert set(threads) == {threading.main_thread()}
    assert len(threads) == 3


def test_every_way_of_waiting_judges(engine: Engine, server: FakeServer) -> None:
    def odd(value: int) -> None:
        assert value % 2, "odd numbers only"

    def ask(s: rs.State) -> rs.Var[int]:
        return s.gen(json=int, validate=odd, retries=1, seed=0)

    @rs.function
    def plain(s: rs.State) -> list[Any]:
        iterated = "".join(ask(s))
        completed = [v.value for v in rs.as_completed([ask(b) for b in s.fork(2)])]
        polled = ask(s)
        polled.flush()
        while not polled.done:
            pass
        settled = ask(s)
        settled.settle()
        assert settled.done
        return [iterated, *completed, polled.value, settled.token_ids]

    @rs.function
    async def loop(s: rs.State) -> list[Any]:
        iterated = "".join([piece async for piece in ask(s)])
        completed = [await v async for v in rs.as_completed([ask(b) for b in s.fork(2)])]
        return [iterated, *completed, await ask(s)]

    @rs.function
    def returned(s: rs.State) -> rs.Var[int]:
        return ask(s)

    server.answer = lambda gen: "2" if gen.sampling.seed == 0 else "3"
    assert plain.run(engine=engine).value == ["3", 3, 3, 3, ()]

    async def under_a_loop() -> list[Any]:
        return [(await loop.arun(engine=engine)).value, "".join([piece async for piece in returned.stream(engine=engine)])]

    assert asyncio.run(under_a_loop()) == [["3", 3, 3, 3], "3"]
    assert returned.run(engine=engine).value.value == 3


@pytest.mark.parametrize(
    ("validate", "words"),
    [
        (lambda value: False, r"validate\(\) returned False"),
        (lambda value: [][0], "the validator raised IndexError, which is no verdict: .*list index out of range"),
    ],
)
def test_what_validate_may_do(engine: Engine, server: FakeServer, validate: Any, words: str) -> None:
    @rs.function
    def judged(s: rs.State) -> int:
        return s.gen(json=int, validate=validate, retries=1).value

    server.answer = lambda gen: "2"
    with pytest.raises(rs.InvalidValueError, match=words) as caught:
        judged.run(engine=engine)
    # A mistake in the validator is no verdict: nothing is tried again.
    assert len(caught.value.attempts) == (2 if "False" in words else 1)
    assert len(server.of(Gen)) == len(caught.value.attempts)


def test_validate_alone_takes_back_too(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def judged(s: rs.State) -> str:
        with pytest.raises(rs.InvalidValueError, match="validate"):
            _ = s.gen(validate=lambda text: text != "no").value
        return s.gen(validate=lambda text: text != "no").value

    server.answer = numbers("no", "yes")
    assert judged.run(engine=engine).value == "yes"
    assert len(server.of(Rollback)) == 1


def test_calls_are_judged_by_their_arguments(engine: Engine, server: FakeServer) -> None:
    @rs.tool
    def take(even: Even) -> int:
        return even.number

    @rs.function
    def calls(s: rs.State) -> int:
        with pytest.raises(rs.InvalidValueError, match=r"arguments of take\(\) do not fit"):
            _ = s.gen(tools=(take,), retries=1).value
        return s.call(s.gen(tools=(take,), retries=1).value)

    texts = ['{"even": {"number": 1}}'] * 3 + ['{"even": {"number": 4}}']
    server.answer = lambda gen: called(gen, ("take", texts[gen.var]))
    assert calls.run(engine=engine).value == 4
    # The tools were set before the first generation, so going back to before it keeps them.
    assert len(server.of(Tools)) == 1


def test_an_attempt_that_is_told_twice_counts_once(engine: Engine, server: FakeServer) -> None:
    """As after a connection was lost, when the server tells again what it has."""

    @rs.function
    def even(s: rs.State) -> int:
        return s.gen(json=Even, retries=1).value.number

    def answer(gen: Gen) -> Any:
        text = '{"number": 3}' if gen.var == 0 else '{"number": 4}'
        done = Done(program=gen.program, op=gen.op, var=gen.var, value=text)
        server.send(done)
        if gen.var == 0:
            server.send(done)
            return None
        server.send(Done(program=gen.program, op=0, var=0, value='{"number": 3}'), done)
        return None

    server.answer = answer
    run = even.run(engine=engine)
    assert run.value == 4
    assert run.trace.root.steps[0].num_refused == 1
    assert len(server.of(Gen)) == 2


def test_a_program_that_can_be_taken_up_elsewhere_retries_before_its_forks_only(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def resumable(s: rs.State) -> int:
        value = s.gen(json=int, retries=1).value
        branch = s.fork(1)[0]
        with pytest.raises(ValueError, match=r"gen at .*in resumable: a program with a resume_key can't use retries="):
            branch.gen(json=int, retries=1)
        return value + branch.gen(json=int).value

    server.answer = numbers("x", "1", "2")
    server.on_attach = lambda m: [Refused(program=m.program, status=404, code="unknown_program", message="no such program")]
    assert resumable.using(resume_key="k" * 16, detached_ttl_s=5).run(engine=engine).value == 3


# ---- together with forks, cancelling and failures ------------------------------------------------------------------


def test_a_fork_is_held_and_may_be_left_before_it_is_sent(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def forks(s: rs.State) -> tuple[int, str]:
        v = s.gen(json=Even, retries=1)
        with s.fork(2) as branches:
            lost = branches[0].gen()
            branches[0].fork(1)[0].gen()
        kept = s.fork(1)[0]
        with pytest.raises(rs.OpCancelledError, match="its fork block was left"):
            _ = lost.value
        v.flush()
        server.wait_for(Gen)
        assert not server.of(Fork)
        server.finish(0, '{"number": 2}')
        assert kept.path == (2,)
        return v.value.number, kept.gen().value

    server.answer = lambda gen: None if gen.constraint is not None else "kept"
    assert forks.run(engine=engine).value == (2, "kept")
    server.wait_for(Close)
    # The first fork still counts for the paths (and seeds) of later branches.
    assert [(fork.first, fork.count) for fork in server.of(Fork)] == [(1, 2), (4, 1)]
    assert server.of(Drop) == [Drop(program=1, branches=(1, 2))]
    assert [gen.branch for gen in server.of(Gen)] == [0, 4]


def test_a_cancelled_value_spoils_what_refers_to_it(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def cancelled(s: rs.State) -> str:
        with s.fork(1) as (branch,):
            v = branch.gen(json=Even, retries=1)
            s += rs.user(v)
            merged = s.gen()
            server.wait_for(Gen) if v.done else v.flush()
        with pytest.raises(rs.OpSkippedError, match="its fork block was left"):
            _ = merged.value
        return "told"

    server.answer = lambda gen: None
    assert cancelled.run(engine=engine).value == "told"
    server.wait_for(Close)
    assert not server.of(Append)


def test_a_failure_on_the_server_ends_the_attempts(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def fails(s: rs.State) -> str:
        v = s.gen(json=Even, retries=5)
        after = s.gen()
        with pytest.raises(rs.OpSkippedError):
            _ = after.value
        return v.value and ""  # type: ignore[return-value]

    def answer(gen: Gen) -> Any:
        code = "boom" if gen.constraint is not None else "skipped"
        return Failed(program=gen.program, op=gen.op, var=gen.var, code=code, message="skipped: op 0 failed", status=500)

    server.answer = answer
    with pytest.raises(rs.OpError, match="boom"):
        fails.run(engine=engine)
    assert len(server.of(Gen)) == 2


def test_a_program_that_ends_while_a_value_is_judged(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def early(s: rs.State) -> list[rs.Var[Any]]:
        early_vars.append(s.gen(json=Even, retries=1))
        early_vars.append(s.gen())
        return []

    early_vars: list[rs.Var[Any]] = []
    server.answer = lambda gen: None
    assert early.run(engine=engine).value == []
    for lost in early_vars:
        with pytest.raises(rs.ProgramEndedError, match="its program has ended"):
            _ = lost.value


def test_encoding_errors_show_at_the_line_even_where_the_op_is_held(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def wrong(s: rs.State) -> str:
        v = s.gen(json=Even, retries=1)
        with pytest.raises(ValueError, match=r"Gen can't be sent.*temperature"):
            s.gen(temperature="hot")  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="Append can't be sent"):
            s += "\ud800"
        after = s.gen()
        return f"{v.value.number} {after.value}"

    server.answer = lambda gen: '{"number": 2}' if gen.constraint is not None else "fine"
    assert wrong.run(engine=engine).value == "2 fine"


def test_threads_may_retry_side_by_side(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def threaded(s: rs.State) -> list[int]:
        values: list[int] = []

        def work(b: rs.State) -> None:
            values.extend(b.gen(json=Even, retries=2, seed=0).value.number for _ in range(10))

        threads = [threading.Thread(target=work, args=(b,)) for b in s.fork(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return values

    server.answer = lambda gen: '{"number": 2}' if gen.sampling.seed == 2 else '{"number": 1}'
    assert threaded.run(engine=engine).value == [2] * 60
    ops = [message.op for message in server.messages if hasattr(message, "op")]
    assert ops == sorted(set(ops))


# ---- any program ---------------------------------------------------------------------------------------------------

Step = tuple[str, int, int]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("gen"), st.integers(0, 9), st.integers(0, 2)),
        st.tuples(st.just("judged"), st.integers(0, 9), st.integers(0, 2)),
        st.tuples(st.just("fork"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("refer"), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("read"), st.integers(0, 9), st.just(0)),
    ),
    max_size=25,
)


class Contents:
    """What each branch holds, as the wire has it."""

    def __init__(self, messages: list[Any]) -> None:
        self.branches: dict[int, list[str]] = {0: []}
        self._values: dict[int, str] = {}
        self._marks: dict[int, list[str]] = {}
        for message in messages:
            if hasattr(message, "op"):
                self._apply(message)

    def _apply(self, message: Any) -> None:
        held = self.branches[message.branch]
        self._marks[message.op] = list(held)
        match message:
            case Append():
                held.extend(part.text if isinstance(part, Text) else self._values[part.var] for part in message.parts)
            case Gen():
                self._values[message.var] = answered(message)
                held.append(self._values[message.var])
            case Fork():
                self.branches[message.first] = list(held)
            case Rollback():
                self.branches[message.branch] = self._marks[message.to_op]


def answered(gen: Gen) -> str:
    """The seed says which gen it is, how often it is to be refused, and which attempt this is."""
    assert gen.sampling.seed is not None
    gen_id, rest = divmod(gen.sampling.seed, 100)
    bad, attempt = divmod(rest, 10)
    return str(gen_id) if attempt >= bad else "no number"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=steps, in_program=st.booleans())
def test_any_program_says_the_same_as_without_retries(
    engine: Engine, server: FakeServer, program: list[Step], in_program: bool
) -> None:
    expected: list[list[str]] = [[]]
    numbers_of: list[int] = [0]

    @rs.function
    def run(s: rs.State) -> None:
        states, made, values = [s], list[rs.Var[int]](), list[str]()
        for index, (kind, which, more) in enumerate(program):
            place = which % len(states)
            if kind == "text":
                states[place] += f"t{index}"
                expected[place].append(f"t{index}")
            elif kind in ("gen", "judged"):
                bad = more if kind == "judged" else 0
                retries = 2 if kind == "judged" else 0
                validate = (lambda value: value >= 0) if in_program and kind == "judged" else None
                made.append(states[place].gen(json=int, seed=index * 100 + bad * 10, retries=retries, validate=validate))
                values.append(str(index))
                expected[place].append(str(index))
            elif kind == "fork":
                (child,) = states[place].fork(1)
                states.append(child)
                numbers_of.append(len(states) - 1)
                expected.append(list(expected[place]))
            elif kind == "refer" and made:
                chosen = more % len(made)
                states[place] += made[chosen]
                expected[place].append(values[chosen])
            elif kind == "read" and made:
                assert made[which % len(made)].value == int(values[which % len(made)])
        s.gen(json=int, seed=0).settle()
        for v, value in zip(made, values, strict=True):
            assert v.value == int(value)

    server.frames.clear()
    server.answer = lambda gen: Done(
        program=gen.program, op=gen.op, var=gen.var, value=answered(gen), usage=Usage(output_tokens=1)
    )
    run.run(engine=engine)
    server.wait_for(Close)
    contents = Contents(server.messages).branches
    expected[0].append("0")
    assert [contents[number] for number in numbers_of] == expected
