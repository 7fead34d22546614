"""Each kind of error, as its reader sees it: which op, which line of the program, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import radixserve
import radixserve_lang as rs
from radixserve_tokenizer.protocol import Failed, Gen, Goodbye, Refused, Reply
from tests.lang.fake_server import Engine, called

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.client import Client
    from tests.lang.fake_server import FakeServer

DOCS = Path(__file__).parents[2] / "docs" / "dsl.md"


@dataclass
class Bench:
    """What a case may use."""

    server: FakeServer
    engine: Engine
    folder: Path


def failed(gen: Gen, code: str, message: str, **more: Any) -> Failed:
    return Failed(program=gen.program, op=gen.op, var=gen.var, code=code, message=message, **more)


def line_of(mark: str) -> str:
    """`test_error_messages.py:12`, of the line with that comment."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"  # {mark}")]
    return f"{Path(__file__).name}:{number} in "


@rs.function
def ask(s: rs.State) -> str:
    v = s.gen()  # asked
    return v.value


def op_error(bench: Bench) -> None:
    bench.server.answer = lambda gen: failed(gen, "context_length_exceeded", "the context has 4096 tokens", partial="some te")
    ask.run(engine=bench.engine)


def cancelled(bench: Bench) -> None:
    @rs.function
    def left(s: rs.State) -> str:
        with s.fork(1) as (branch,):
            lost = branch.gen()  # cancelled
        return lost.value

    bench.server.answer = lambda gen: None
    left.run(engine=bench.engine)


def skipped(bench: Bench) -> None:
    @rs.function
    def poisoned(s: rs.State) -> str:
        s.gen()  # fails first
        after = s.gen()  # skipped
        return after.value

    def answer(gen: Gen) -> Failed:
        if gen.op == 0:
            return failed(gen, "runtime_down", "the runtime is gone", retryable=True)
        return failed(gen, "skipped", "skipped: op 0 failed: the runtime is gone")

    bench.server.answer = answer
    poisoned.run(engine=bench.engine)


def over_budget(bench: Bench) -> None:
    bench.server.answer = lambda gen: failed(gen, "budget_exhausted", "the program may draw 5 tokens and has drawn 5")
    ask.run(engine=bench.engine, budget=rs.Budget(tokens=5))


def invalid_value(bench: Bench) -> None:
    @rs.function
    def number(s: rs.State) -> int:
        return s.gen(json=int, retries=1).value  # invalid

    bench.server.answer = lambda gen: "twelve"
    number.run(engine=bench.engine)


def tool_error(bench: Bench) -> None:
    @rs.tool
    def search(query: str) -> str:
        raise LookupError(f"no page on {query}")

    @rs.function
    def react(s: rs.State) -> str:
        call = s.gen(tools=(search,)).value
        return s.call(call)  # called

    bench.server.answer = lambda gen: called(gen, ("search", '{"query": "cats"}'))
    react.run(engine=bench.engine)


def var_in_text(bench: Bench) -> None:
    @rs.function
    def formatted(s: rs.State) -> str:
        v = s.gen()  # formatted
        return f"{v}"

    formatted.run(engine=bench.engine)


def branch_dropped(bench: Bench) -> None:
    @rs.function
    def late(s: rs.State) -> str:
        with s.fork(1) as (branch,):
            pass
        return branch.gen().value  # late

    late.run(engine=bench.engine)


def program_refused(bench: Bench) -> None:
    bench.server.on_open = lambda message: Refused(
        program=message.program, status=401, code="invalid_api_key", message="this key is not known"
    )
    bench.server.answer = lambda gen: None
    ask.run(engine=bench.engine)


def server_gone(bench: Bench) -> None:
    def answer(gen: Gen) -> Goodbye:
        return Goodbye(epoch="", message="the server is being stopped")

    bench.server.answer = answer
    ask.run(engine=bench.engine)


def taken_over(bench: Bench) -> None:
    bench.server.answer = lambda gen: Failed(program=gen.program, op=-1, code="taken_over", message="taken over", status=409)
    ask.run(engine=bench.engine)


def program_ended(bench: Bench) -> None:
    kept: list[rs.Var[str]] = []

    @rs.function
    def early(s: rs.State) -> None:
        kept.append(s.gen())  # kept

    bench.server.answer = lambda gen: None
    early.run(engine=bench.engine)
    _ = kept[0].value


def program_error(bench: Bench) -> None:
    bench.server.answer = lambda gen: Failed(program=gen.program, op=999, code="op_order", message="op 999 does not follow op 0")
    ask.run(engine=bench.engine)


def connection_failed(bench: Bench) -> None:
    rs.connect(f"ipc://{bench.folder}/nobody", timeout_s=0.1)


def query_failed(bench: Bench) -> None:
    bench.server.on_query = lambda query: Reply(id=query.id, error="admin only: pass an admin's key", status=403)
    bench.engine.client.query("stats").result(5)


def client_closed(bench: Bench) -> None:
    bench.engine.client.close()
    ask.run(engine=bench.engine)


def config_error(bench: Bench) -> None:
    radixserve.Engine("smollm2-135m", kv_token=8)


def model_error(bench: Bench) -> None:
    radixserve.Engine(str(bench.folder / "no-model"))


#: By kind: what raises it, what the message says (the op, its line), and what it says to do.
CASES: dict[str, tuple[Callable[[Bench], None], list[str], str]] = {
    "OpError": (op_error, ["gen at ", "asked", "the context has 4096 tokens", "some te"], "Append less before it"),
    "OpCancelledError": (
        cancelled,
        ["gen at ", "cancelled", "its fork block was left"],
        "Read it, and what refers to it, before",
    ),
    "OpSkippedError": (skipped, ["gen at ", "skipped", "fails first", "the runtime is gone"], "run the program again"),
    "BudgetExceededError": (
        over_budget,
        ["gen at ", "asked", "allowed: 5 tokens", "used by ops that are done: "],
        "budget=rs.Budget(...)",
    ),
    "InvalidValueError": (invalid_value, ["gen at ", "invalid", "none of 2 attempts", "twelve"], "allow more retries"),
    "ToolError": (tool_error, ["tool search()", "called", "raised LookupError: no page on cats"], "on_error='append'"),
    "VarInTextError": (var_in_text, ["gen at ", "formatted", "put into an f-string"], "pass the Var itself"),
    "BranchDroppedError": (branch_dropped, ["gen at ", "late", "its fork block was left"], "fork a new one"),
    "ProgramRefusedError": (program_refused, ["gen at ", "asked", "this key is not known"], "Pass the key of a tenant"),
    "ServerGoneError": (server_gone, ["gen at ", "asked", "being stopped"], "Run the program again"),
    "TakenOverError": (taken_over, ["gen at ", "asked", "taken up elsewhere"], "give a new one to each"),
    "ProgramEndedError": (program_ended, ["gen at ", "kept", "its program has ended"], "return the Vars"),
    "ProgramError": (program_error, ["gen at ", "asked", "op 999 does not follow"], "please report it"),
    "ConnectionFailedError": (connection_failed, ["no server answered at ipc://"], "is it running?"),
    "QueryFailedError": (query_failed, ["admin only"], "pass an admin's key"),
    "ClientClosedError": (client_closed, ["this client is closed"], "make a new one"),
    "ConfigError": (config_error, ["kv_token"], "kv_tokens"),
    "ModelError": (model_error, ["no-model"], "smollm2-135m"),
    "RadixServeError": (op_error, ["gen at "], ""),
}


def documented() -> list[str]:
    """The kinds in the tree of docs/dsl.md."""
    text = DOCS.read_text()
    (tree,) = re.findall(r"```text\n(RadixServeError\n.*?)```", text, re.DOTALL)
    return re.findall(r"^[│├└─ ]*(\w+Error)\b", tree, re.MULTILINE)


def test_every_documented_kind_has_a_case() -> None:
    # A process that can't start is tested with real processes: tests/integration/test_start_errors.py.
    assert set(documented()) == {*CASES, "EngineStartError"}


@pytest.mark.parametrize("kind", CASES)
def test_the_message_names_the_op_its_line_and_what_to_do(
    kind: str, server: FakeServer, start_client: Callable[..., Client], tmp_path: Path
) -> None:
    run, says, to_do = CASES[kind]
    expected = getattr(radixserve, kind)
    with pytest.raises(expected) as caught:
        run(Bench(server, Engine(start_client()), tmp_path))
    assert kind == "RadixServeError" or type(caught.value) is expected or kind in ("ConfigError", "ModelError")
    message = str(caught.value)
    marks = [line_of(part) if f"  # {part}\n" in Path(__file__).read_text() else part for part in says]
    for part in (*marks, to_do):
        assert part in message, f"{part!r} is not in: {message}"
