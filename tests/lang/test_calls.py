"""Generations with tools, running the calls, and leases around them, against a scripted server."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import radixserve_lang as rs
from radixserve_tokenizer.protocol import (
    Append,
    Close,
    Done,
    Fork,
    Gen,
    Lease,
    LeaseLost,
    Release,
    Text,
    Tools,
    ToolUse,
)
from tests.lang.fake_server import Engine, called

if TYPE_CHECKING:
    from tests.lang.fake_server import FakeServer


@rs.tool
def search(query: str, top_k: int = 3) -> list[str]:
    """Search."""
    if query == "bad":
        raise KeyError("no such page")
    return [query] * top_k


@rs.tool
def finish(answer: str) -> str:
    """Finish."""
    return answer


@rs.tool
async def fetch(url: str) -> bytes:
    """Fetch."""
    await asyncio.sleep(0)
    if url == "bad":
        raise OSError("unreachable")
    return url.encode()


@rs.function
def react(s: rs.State, question: str) -> str:
    s += rs.user(question)
    for _ in range(8):
        call = s.gen(tools=(search, finish)).value
        result = s.call(call, lease_s=20.0)
        if isinstance(result, str):
            return result
    raise TimeoutError


def test_a_tool_loop(engine: Engine, server: FakeServer) -> None:
    script = [("search", '{"query": "a", "top_k": 2}'), ("finish", '{"answer": "b"}')]
    server.answer = lambda gen: called(gen, script[gen.var])
    run = react.run("q", engine=engine)
    assert run.value == "b"
    assert run.usage.tool_calls == 2
    assert """search({"query": "a", "top_k": 2})""" in str(run.trace)
    server.wait_for(Close)
    told = Append(
        program=1,
        op=4,
        branch=0,
        parts=(Text(text='["a","a"]'),),
        role="tool",
        fields={"tool_call_id": "call_0_0", "name": "search"},
    )
    ops = [message for message in server.messages if hasattr(message, "op")]
    # The tools are not sent again, and the generation itself ends the lease.
    assert [type(message) for message in ops] == [Append, Tools, Gen, Lease, Append, Gen, Lease, Append]
    assert ops[1] == Tools(program=1, op=1, branch=0, tools=(search.spec, finish.spec))
    assert ops[2].tool_use == ToolUse(mode="required", parallel=False)
    assert ops[3:5] == [Lease(program=1, op=3, branch=0, ttl_s=20.0), told]


def test_what_a_call_holds(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def one(s: rs.State) -> rs.Call[Any]:
        v = s.gen(tools=[search])
        assert v.finish_reason == "tool_calls"
        return v.value

    server.answer = lambda gen: called(gen, ("search", '{"query":"a"}'))
    call = one.run(engine=engine).value
    assert (call.tool, call.name, call.id, call.text) == (search, "search", "call_0_0", '{"query":"a"}')
    assert call.arguments == {"query": "a", "top_k": 3}
    assert call.place.startswith("gen at ")


def test_auto_and_parallel(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def free(s: rs.State) -> list[Any]:
        values: list[Any] = [
            s.gen(tools=(search,), tool_choice="auto").value,
            s.gen(tools=(search,), tool_choice="auto").value,
            s.gen(tools=(search,), parallel=True).value,
            s.gen(tools=(search,), tool_choice="auto", parallel=True).value,
        ]
        for call in values[2]:
            s.call(call)
        s.gen().settle()
        return values

    def answer(gen: Gen) -> Any:
        if gen.var in (0, 3):
            return "just text"
        return called(gen, ("search", '{"query": "a"}'), ("search", '{"query": "b"}'))

    server.answer = answer
    text, one, two, again = free.run(engine=engine).value
    assert text == again == "just text"
    assert one.arguments["query"] == "a"
    assert [call.arguments["query"] for call in two] == ["a", "b"]
    uses = [gen.tool_use for gen in server.of(Gen)]
    assert uses == [
        ToolUse(mode="auto", parallel=False),
        ToolUse(mode="auto", parallel=False),
        ToolUse(mode="required", parallel=True),
        ToolUse(mode="auto", parallel=True),
        None,  # no tools are asked for: text alone
    ]
    assert len(server.of(Tools)) == 1
    assert [append.fields["tool_call_id"] for append in server.of(Append)] == ["call_2_0", "call_2_1"]


def test_tools_are_sent_when_they_differ_and_forks_inherit_them(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def forks(s: rs.State) -> None:
        s.gen(tools=(search, finish))
        first, second = s.fork(2)
        first.gen(tools=(search, finish))  # has them
        second.gen(tools=(finish,))  # a part of them: named, since to send them anew would change the prefix
        second.gen(tools=(fetch, finish))  # others
        second.fork(1)[0].gen(tools=(fetch, finish))
        s.gen(tools=(search, finish))
        s.gen().settle()

    server.answer = lambda gen: called(gen, ("finish", '{"answer": ""}')) if gen.tool_use else "text"
    forks.run(engine=engine)
    server.wait_for(Close)
    assert [(message.branch, message.tools) for message in server.of(Tools)] == [
        (0, (search.spec, finish.spec)),
        (2, (fetch.spec, finish.spec)),
    ]
    named = [(gen.branch, gen.tool_use and gen.tool_use.names) for gen in server.of(Gen)]
    assert named == [(0, ()), (1, ()), (2, ("finish",)), (2, ()), (3, ()), (0, ()), (0, None)]


def test_plain_callables_are_tools_too(engine: Engine, server: FakeServer) -> None:
    def double(x: int) -> int:
        return 2 * x

    @rs.function
    def plain(s: rs.State) -> int:
        return s.call(s.gen(tools=(double,)).value)

    server.answer = lambda gen: called(gen, ("double", '{"x": 4}'))
    assert plain.run(engine=engine).value == 8
    server.wait_for(Close)
    assert server.of(Append)[0].parts == (Text(text="8"),)


@pytest.mark.parametrize(
    ("calls", "text", "words"),
    [
        ((), "hm", "the model made no call, but wrote 'hm'"),
        ((("guess", "{}"),), "", "called 'guess', which is none of search"),
        ((("search", '{"query": 3}'),), "", r"arguments of search\(\) do not fit"),
        ((("search", '{"query": "a'),), "", r"arguments of search\(\) do not fit"),
    ],
)
def test_what_is_no_valid_call(engine: Engine, server: FakeServer, calls: Any, text: str, words: str) -> None:
    @rs.function
    def one(s: rs.State) -> Any:
        return s.gen(tools=(search,)).value

    server.answer = lambda gen: called(gen, *calls, text=text)
    with pytest.raises(rs.InvalidValueError, match=words) as caught:
        one.run(engine=engine)
    assert caught.value.where.endswith("in one")


def test_a_call_that_was_cut_says_so(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def one(s: rs.State) -> Any:
        return s.gen(tools=(search,), max_tokens=3).value

    server.answer = lambda gen: Done(program=gen.program, op=gen.op, var=gen.var, value='{"na', finish_reason="length")
    with pytest.raises(rs.InvalidValueError, match="cut at max_tokens: raise that"):
        one.run(engine=engine)


# ---- tools that fail -----------------------------------------------------------------------------------------------


def test_a_tool_that_raises_names_itself_and_the_line(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def careless(s: rs.State) -> Any:
        call = s.gen(tools=(search,)).value
        return s.call(call, lease_s=5)

    server.answer = lambda gen: called(gen, ("search", '{"query": "bad"}'))
    with pytest.raises(rs.ToolError) as caught:
        careless.run(engine=engine)
    message = str(caught.value)
    assert message.startswith("tool search(), called at ")
    assert "test_calls.py" in message
    assert "in careless for the gen at" in message
    assert "raised KeyError: 'no such page'" in message
    assert "on_error='append'" in message
    assert isinstance(caught.value.__cause__, KeyError)
    server.wait_for(Close)
    assert len(server.of(Release)) == 1  # nobody would use what the lease keeps


def test_the_model_may_be_told_instead(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def forgiving(s: rs.State) -> str:
        failure = s.call(s.gen(tools=(search,)).value, on_error="append")
        assert isinstance(failure, rs.ToolFailure)
        assert isinstance(failure.error, KeyError)
        assert failure.name == "search"
        s.gen().settle()
        return failure.text

    server.answer = lambda gen: called(gen, ("search", '{"query": "bad"}')) if gen.tool_use else "I see"
    text = forgiving.run(engine=engine).value
    assert text == "Error: KeyError: 'no such page'"
    assert server.of(Append)[0].parts == (Text(text=text),)
    assert server.of(Append)[0].role == "tool"


def test_a_result_that_can_not_be_told(engine: Engine, server: FakeServer) -> None:
    def odd(x: int) -> object:
        return object()

    @rs.function
    def one(s: rs.State) -> Any:
        return s.call(s.gen(tools=(odd,)).value)

    server.answer = lambda gen: called(gen, ("odd", '{"x": 4}'))
    with pytest.raises(rs.ToolError, match=r"tool odd\(\).*returned a object, which can't be told as JSON.*return text"):
        one.run(engine=engine)


def test_async_tools_need_acall(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def wrong(s: rs.State) -> Any:
        return s.call(s.gen(tools=(fetch,)).value)

    server.answer = lambda gen: called(gen, ("fetch", '{"url": "u"}'))
    with pytest.raises(TypeError, match=r"tool fetch\(\) is async: write await s\.acall\(call\) at .*in wrong"):
        wrong.run(engine=engine)


def test_acall_runs_both_kinds(engine: Engine, server: FakeServer) -> None:
    threads: list[int] = []

    def note(word: str) -> str:
        threads.append(threading.get_ident())
        return word

    @rs.function
    async def both(s: rs.State) -> list[Any]:
        first = await s.acall(await s.gen(tools=(fetch, note)), lease_s=3)
        second = await s.acall(await s.gen(tools=(fetch, note)))
        third = await s.acall(await s.gen(tools=(fetch, note)), on_error="append")
        with pytest.raises(rs.ToolError, match=r"fetch\(\).*raised OSError: unreachable"):
            await s.acall(await s.gen(tools=(fetch, note)))
        await s.gen()
        threads.append(threading.get_ident())
        return [first, second, third]

    script = [("fetch", '{"url": "u"}'), ("note", '{"word": "w"}'), ("fetch", '{"url": "bad"}'), ("fetch", '{"url": "bad"}')]
    server.answer = lambda gen: called(gen, script[gen.var]) if gen.tool_use else "text"
    first, second, third = both.run(engine=engine).value
    assert (first, second) == (b"u", "w")
    assert isinstance(third, rs.ToolFailure)
    assert threads[0] != threads[1]  # a plain tool does not hold up the loop
    assert [append.parts[0].text for append in server.of(Append)] == ['"u"', "w", "Error: OSError: unreachable"]


def test_calls_at_once_are_told_in_the_order_in_which_they_began(engine: Engine, server: FakeServer) -> None:
    @rs.tool
    async def wait(turns: int) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns == 30:
            raise OSError("late")
        return str(turns)

    @rs.function
    async def together(s: rs.State) -> list[Any]:
        calls = await s.gen(tools=(wait,), parallel=True)
        results = await asyncio.gather(*(s.acall(call, on_error="append") for call in calls))
        await s.gen()
        return results

    times = [50, 1, 30, 10]
    server.answer = lambda gen: called(gen, *[("wait", f'{{"turns": {n}}}') for n in times]) if gen.tool_use else "text"
    results = together.run(engine=engine).value
    assert [results[0], results[1], results[3]] == ["50", "1", "10"]
    assert [append.parts[0].text for append in server.of(Append)] == ["50", "1", "Error: OSError: late", "10"]


# ---- leases --------------------------------------------------------------------------------------------------------


def test_leases_by_hand(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def leases(s: rs.State) -> str:
        s += rs.user("a")
        with s.lease(2.5):
            server.wait_for(Lease)  # at once, not with the next read
        server.wait_for(Release)
        (branch,) = s.fork(1)
        kept = branch.lease(9)
        server.wait_for(Lease, 2)
        server.send(LeaseLost(program=1, branch=1))
        while not kept.is_lost:
            pass
        branch.release()
        return s.gen().value

    trace = leases.run(engine=engine).trace
    assert [(lease.branch, lease.ttl_s) for lease in server.of(Lease)] == [(0, 2.5), (1, 9)]
    assert [release.branch for release in server.of(Release)] == [0, 1]
    assert [type(message) for message in server.op_frames()[0][1:]] == [Append, Lease]
    steps = trace.root.steps
    assert [(step.kind, step.text, step.status) for step in steps if step.kind == "lease"] == [("lease", "2.5 s", "done")]
    (forked,) = [step for step in steps if step.kind == "fork"]
    assert forked.branches[0].steps[0].status == "lost"
    assert "lost" in str(trace)


def test_n_makes_branches(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def several(s: rs.State) -> list[str]:
        s += rs.user("q")
        drafts = s.gen(n=3, max_tokens=5)
        for draft in drafts:
            draft.branch.gen(json=int)
        first = drafts[0].branch
        assert first.path == (0,)
        assert s.gen().branch is s
        return [draft.value for draft in drafts]

    server.answer = lambda gen: f"v{gen.var}" if gen.constraint is None else "1"
    assert several.run(engine=engine).value == ["v0", "v1", "v2"]
    (fork,) = server.of(Fork)
    assert fork.count == 3
    assert [gen.branch for gen in server.of(Gen)] == [1, 2, 3, 1, 2, 3, 0]

    @rs.function
    def wrong(s: rs.State, arguments: dict[str, Any]) -> None:
        s.gen(**arguments)

    for arguments, words in [
        ({"n": 0}, r"gen\(n=0\): a whole number of 1 or more"),
        ({"n": 2, "tools": (search,)}, "fork first"),
        ({"retries": -1}, r"gen\(retries=-1\)"),
        ({"validate": 3}, "validate= takes a plain function"),
        ({"parallel": True}, "only together with tools="),
        ({"tools": (search,), "tool_choice": "never"}, "tool_choice is 'required'"),
        ({"tools": search}, "takes a tuple or list of tools"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            wrong.run(arguments, engine=engine)


def test_messages_of_any_role(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def roles(s: rs.State) -> str:
        s += rs.message("developer", "Be brief.", name="boss")
        return s.gen().value

    roles.run(engine=engine)
    (append,) = server.of(Append)
    assert (append.role, append.fields) == ("developer", {"name": "boss"})
    assert hash(rs.message("user", "a", name="b")) == hash(rs.message("user", "a", name="b"))
    with pytest.raises(TypeError, match="part of a tool message"):
        rs.message("tool", 3)  # type: ignore[arg-type]
