"""What programs cost on the wire and in threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psutil

import radixserve_lang as rs
from radixserve_tokenizer.protocol import Append, Close, Credit, Fork, Gen, Lease, Open, Score, Select, Tools, encode
from tests.lang.fake_server import Engine, called

if TYPE_CHECKING:
    from tests.lang.fake_server import FakeServer


@rs.tool
def look(word: str) -> str:
    """Look a word up."""
    return word


def test_the_bytes_of_a_turn_do_not_depend_on_the_length_of_the_conversation(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def chat(s: rs.State) -> None:
        s += rs.system("Be brief. " * 100)
        for _ in range(200):
            s += rs.user("the same question")
            s.gen(max_tokens=16).settle()

    server.answer = lambda gen: "a long answer " * 50
    chat.run(engine=engine)
    server.wait_for(Close)
    turns = server.op_frames()[1:200]
    sizes = [len(encode(frame)) for frame in turns]
    # Numbers grow: msgpack writes each of the two op numbers and the variable's in up to two bytes more.
    assert max(sizes) - min(sizes) <= 6
    assert max(sizes) < 250


def test_the_bytes_of_a_tool_turn_do_not_depend_on_it_either(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def loop(s: rs.State) -> None:
        for _ in range(150):
            s.call(s.gen(tools=(look,)).value, lease_s=5)
        s.gen().settle()

    server.answer = lambda gen: called(gen, ("look", '{"word": "a"}')) if gen.tool_use else "end"
    loop.run(engine=engine)
    server.wait_for(Close)
    assert len(server.of(Tools)) == 1
    # By message: a lease that leaves at once may travel with what comes next.
    for kind in (Append, Lease, Gen):
        sizes = [len(encode([message])) for message in server.of(kind)[1:150]]
        assert len(sizes) == 149
        assert max(sizes) - min(sizes) <= 6  # an append also has the call's id, with up to two digits more


def test_a_wide_fork_is_one_message_whether_forked_or_asked_for(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def wide(s: rs.State) -> int:
        s += rs.user("q")
        with s.fork(64) as branches:
            values = [b.gen() for b in branches]
            drafts = s.gen(n=64)
            return sum(len(v.value) for v in (*values, *drafts))

    assert wide.run(engine=engine).value == 256
    assert [(fork.branch, fork.count) for fork in server.of(Fork)] == [(0, 64), (0, 64)]
    first = server.op_frames()[0]
    assert [type(message) for message in first[:4]] == [Open, Append, Fork, Gen]
    assert len(first) == 1 + 1 + 1 + 64 + 1 + 64


def test_64_branches_need_the_program_s_thread_and_one_more(engine: Engine, server: FakeServer) -> None:
    seen: list[tuple[int, int]] = []
    process = psutil.Process()

    def count() -> None:
        seen.append((threading.active_count(), process.num_threads()))

    @rs.function
    def wide(s: rs.State) -> None:
        count()
        with s.fork(64) as branches:
            checked = [b.gen(json=int, retries=1, validate=lambda value: value > 0) for b in branches]
            after = [b.gen() for b in branches]
            for v in rs.as_completed([*checked, *after]):
                count()
                v.settle()
            assert sum(v.value for v in checked) == 64

    server.answer = lambda gen: "1" if gen.constraint is not None else "x"
    wide.run(engine=engine)
    assert len(set(seen)) == 1
    mine = [thread for thread in threading.enumerate() if thread.name.startswith("radixserve")]
    assert len(mine) == 1  # the client's; the program's is the caller's own


def test_what_is_scored_together_travels_together(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def tree(s: rs.State) -> list[int]:
        s += rs.user("q")
        kids = [grandchild for child in s.fork(4) for grandchild in child.fork(2)]
        for kid in kids:
            kid.gen(max_tokens=4)
        marks = [kid.score([" good", " bad"], method="unconditional") for kid in kids]
        picks = [kid.select(["a", "b"], method="sum") for kid in kids]
        return [len(mark.value) for mark in marks] + [len(pick.value) for pick in picks]

    assert tree.run(engine=engine).value == [2] * 8 + [1] * 8
    server.wait_for(Close)
    together, _ = server.op_frames()
    scores = [message for message in together if isinstance(message, Score)]
    assert [score.branch for score in scores] == list(range(5, 13))
    assert {score.method for score in scores} == {"unconditional"}
    assert len([message for message in together if isinstance(message, Select)]) == 8
    assert not server.of(Credit)
