"""Traces as text, data and a web page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

import radixserve_lang as rs
from radixserve_lang import testing
from radixserve_tokenizer.protocol import Usage

if TYPE_CHECKING:
    from pathlib import Path

NASTY = "<script>alert('x')</script> & \"quoted\" \u2028 `code`"


@rs.tool
def look(what: str) -> str:
    """Look it up."""
    return f"saw {what}"


@rs.function
def everything(s: rs.State) -> str:
    s += (rs.system("Be brief."), rs.user(NASTY))
    first = s.gen(max_tokens=8)
    with s.fork(2) as branches:
        texts = [b.gen() for b in branches]
        kept = texts[0].value
    s += rs.user("Merge ", first, kept)
    call = s.gen(tools=(look,)).value
    s.call(call)
    s.select(["a", "b"])
    marks = s.score(["<c>", "d"])
    bad = s.fork(1)[0].gen()
    with pytest.raises(rs.OpError):
        _ = bad.value
    return first.value + str(marks.value)


@pytest.fixture(scope="module")
def trace() -> rs.Trace:
    script: list[Any] = [NASTY, "kept", testing.RUNNING, testing.call(look, what="<b>it</b>"), "b", {"<c>": -1.5, "d": -2.0}]
    with testing.Scripted([*script, testing.Failure("no <room>")]) as engine:
        return everything.run(engine=engine).trace


def test_steps_say_what_they_cost_and_when(trace: rs.Trace) -> None:
    steps = trace.root.steps
    assert [step.kind for step in steps] == [
        "system", "user", "gen", "fork", "user", "tools", "gen", "tool", "select", "score", "fork",
    ]  # fmt: skip
    gen = steps[2]
    assert gen.usage is not None
    assert gen.new_tokens == gen.usage.prompt_tokens
    assert gen.finish_reason == "stop"
    assert gen.ended_s is not None
    assert 0 <= steps[0].began_s <= gen.began_s <= gen.ended_s
    assert steps[6].calls == (("look", '{"what":"<b>it</b>"}'),)
    assert [child.steps[0].status for child in steps[3].branches] == ["done", "cancelled"]
    failed = steps[10].branches[0].steps[0]
    assert failed.status == "failed"
    assert "no <room>" in failed.error
    assert steps[0].ended_s is None


def test_tokens_since_the_op_before() -> None:
    @rs.function
    def two(s: rs.State) -> None:
        s += rs.user("one two three")
        s.gen()
        s += rs.user("four")
        s.gen().settle()

    def numbered(text: str) -> str:
        return "x"

    with testing.Scripted(numbered) as engine:
        run = two.run(engine=engine)
    gens = [step for step in run.trace.root.steps if step.kind == "gen"]
    assert gens[0].new_tokens == gens[0].usage.prompt_tokens if gens[0].usage else False


def test_json_has_all_of_it(trace: rs.Trace) -> None:
    data = json.loads(trace.to_json(indent=1))
    assert data["version"] == 1
    steps = data["root"]["steps"]
    assert steps[1]["text"] == NASTY
    assert steps[2]["usage"]["prompt_tokens"] > 0
    assert steps[9]["scores"] == [["<c>", -1.5], ["d", -2.0]]
    assert steps[3]["branches"][1]["path"] == [1]
    assert set(steps[0]) == set(rs.TraceStep.__dataclass_fields__)


class Reader(HTMLParser):
    """What a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [name for name, _ in attrs if name in ("src", "href", "onclick", "onload")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_stands_alone_and_runs_nothing(trace: rs.Trace) -> None:
    page = trace.to_html()
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert "script" not in reader.tags
    assert not reader.links
    assert not re.search(r"https?:|@import|url\(", page)
    assert NASTY in "".join(reader.text)
    assert "no <room>" in "".join(reader.text)
    assert 'look({"what":"<b>it</b>"})' in "".join(reader.text)
    assert "prefers-color-scheme: dark" in page
    assert "branch 1" in page


def test_a_notebook_shows_the_same(trace: rs.Trace) -> None:
    shown = trace._repr_html_()
    assert shown.startswith('<div class="rs-trace">')
    assert shown in trace.to_html()


@pytest.mark.parametrize(("name", "start"), [("t.html", "<!doctype html>"), ("t.json", '{"version": 1'), ("t.txt", "program")])
def test_files(trace: rs.Trace, tmp_path: Path, name: str, start: str) -> None:
    trace.save(tmp_path / name)
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


def test_a_program_without_ops_has_a_trace() -> None:
    @rs.function
    def nothing(s: rs.State) -> None:
        return None

    with testing.Scripted() as engine:
        run = nothing.run(engine=engine)
    assert json.loads(run.trace.to_json())["root"]["steps"] == []
    assert "0 ops" in run.trace.to_html()


@pytest.mark.parametrize(
    ("queued_s", "shown"), [(0.0002, "9 prompt (4 cached) + 2 out, ran 1.250 s"), (0.25, "+ 2 out, waited 0.250 s, ran 1.250 s")]
)
def test_a_wait_is_told_only_when_there_was_one(queued_s: float, shown: str) -> None:
    usage = Usage(prompt_tokens=9, cached_tokens=4, output_tokens=2, queued_s=queued_s, prefill_s=1.0, decode_s=0.25)
    step = rs.TraceStep(kind="gen", where="app.py:1", text="Yes.", status="done", usage=usage)
    assert shown in str(rs.Trace(rs.TraceBranch(path=(), steps=(step,))))
