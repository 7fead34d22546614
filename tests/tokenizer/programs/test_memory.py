"""A conversation that comes back as text goes on from the ids that its turns were drawn in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.memory import Turn, TurnMemory, said_turn, told_turn
from radixserve_tokenizer.programs.transcript import TextModel
from radixserve_tokenizer.text.template import ChatTemplate
from radixserve_tokenizer.tools.jsonformats import SmolLM2
from tests.tokenizer.programs.harness import TEMPLATE, World, append, config, encode, gen, says, token, tokenizer
from tests.tokenizer.tenants.people import key, tenant, world

#: "ABC hello" in the pieces that nobody's encoder would choose.
ODD = tuple(token(piece) for piece in ["A", "B", "C", " ", "h", "e", "l", "l", "o"])
PLAIN = "ABC hello"


def converse(it: World, number: int, *turns: tuple[str, str], **opening: Any) -> list[int]:
    """A program of these messages and a generation; the prompt that the runtime got."""
    ops: list[wire.FromClient] = [append(index, text, role=role, program=number) for index, (role, text) in enumerate(turns)]
    it.send(wire.Open(program=number, **opening), *ops, gen(len(turns), program=number))
    request = it.sent(rt.Generate)[-1]
    return it.runtime.prompts[request.request_id]


def test_the_same_ids_come_back() -> None:
    assert encode(PLAIN) != ODD
    it = World()
    it.runtime.scripts.append(says(ODD))
    first = converse(it, 0, ("user", "q"))
    assert it.one(wire.Done, program=0).value == PLAIN
    second = converse(it, 1, ("user", "q"), ("assistant", PLAIN), ("user", "and?"))
    assert second[: len(first) + len(ODD)] == [*first, *ODD]
    # The rest is what the template writes after any turn.
    plain = converse(World(), 0, ("user", "q"), ("assistant", PLAIN), ("user", "and?"))
    assert second[len(first) + len(ODD) :] == plain[len(first) + len(encode(PLAIN)) :]


def test_a_whole_conversation() -> None:
    """Every turn of it, as each request sends all that was said before."""
    it = World()
    turns: list[tuple[str, str]] = []
    before: list[int] = []
    for number in range(4):
        it.runtime.scripts.append(says(ODD[number:]))
        turns.append(("user", f"question {number}"))
        prompt = converse(it, number, *turns)
        assert prompt[: len(before)] == before
        before = [*prompt, *ODD[number:]]
        turns.append(("assistant", it.one(wire.Done, program=number).value))


def test_what_is_said_after_it_is_a_turn_of_its_own() -> None:
    """The turn that came back is closed: a generation right after it opens another."""
    it = World()
    it.runtime.scripts.append(says(ODD))
    first = converse(it, 0, ("user", "q"))
    second = converse(it, 1, ("user", "q"), ("assistant", PLAIN))
    plain = converse(World(), 0, ("user", "q"), ("assistant", PLAIN))
    assert second[: len(first) + len(ODD)] == [*first, *ODD]
    assert second[len(first) + len(ODD) :] == plain[len(first) + len(encode(PLAIN)) :]


@pytest.mark.parametrize(
    "turns",
    [
        [("user", "q"), ("assistant", PLAIN + "!"), ("user", "and?")],
        [("user", "other"), ("assistant", PLAIN), ("user", "and?")],
        [("system", "s"), ("user", "q"), ("assistant", PLAIN), ("user", "and?")],
        [("user", "q"), ("user", PLAIN), ("user", "and?")],
    ],
)
def test_another_text_or_place(turns: list[tuple[str, str]]) -> None:
    it = World()
    it.runtime.scripts.append(says(ODD))
    converse(it, 0, ("user", "q"))
    assert converse(it, 1, *turns) == converse(World(), 0, *turns)


def test_tenants_and_salts_know_nothing_of_each_other() -> None:
    it = world(tenant("a"), tenant("b"), hold=False)
    it.runtime.scripts.append(says(ODD))
    first = converse(it, 0, ("user", "q"), api_key=key("a"), cache_salt="s")
    turns = [("user", "q"), ("assistant", PLAIN), ("user", "and?")]
    plain = converse(World(), 0, *turns)
    others = [
        converse(it, 1, *turns, api_key=key("b"), cache_salt="s"),
        converse(it, 2, *turns, api_key=key("a"), cache_salt="t"),
        converse(it, 3, *turns, api_key=key("a")),
    ]
    assert others == [plain] * 3
    assert converse(it, 4, *turns, api_key=key("a"), cache_salt="s")[: len(first) + len(ODD)] == [*first, *ODD]


def test_a_turn_with_text_before_it_is_not_remembered() -> None:
    """Only what was generated from its beginning on is a whole message."""
    it = World()
    it.runtime.scripts.append(says(ODD))
    it.send(wire.Open(program=1), append(0, "q", role="user"), append(1, "AB"), gen(2))
    assert it.one(wire.Done).value == PLAIN
    assert it.core.services.memory.num_ids == 0


def test_several_choices() -> None:
    it = World()
    for ids in (ODD, ODD[:4]):
        it.runtime.scripts.append(says(ids))
    it.send(wire.Open(program=1), append(0, "q", role="user"), wire.Fork(program=1, op=1, branch=0, first=1, count=2))
    it.send(gen(2, branch=1, var=0), gen(3, branch=2, var=1))
    for number, ids in enumerate((ODD, ODD[:4])):
        prompt = converse(
            it, number + 2, ("user", "q"), ("assistant", it.one(wire.Done, var=number, program=1).value), ("user", "x")
        )
        start = len(converse(World(), 0, ("user", "q")))
        assert prompt[start : start + len(ids)] == list(ids)


def test_rollback_after_a_restored_turn() -> None:
    it = World()
    it.runtime.scripts.append(says(ODD))
    converse(it, 0, ("user", "q"))
    it.send(
        wire.Open(program=1),
        append(0, "q", role="user", program=1),
        append(1, PLAIN, role="assistant", program=1),
        wire.Rollback(program=1, op=2, branch=0, to_op=1),
        append(3, "other", role="assistant", program=1),
        append(4, "and?", role="user", program=1),
        gen(5, program=1),
    )
    prompt = it.runtime.prompts[it.sent(rt.Generate)[-1].request_id]
    assert prompt == converse(World(), 0, ("user", "q"), ("assistant", "other"), ("user", "and?"))


def test_calls_come_back() -> None:
    """A turn with calls stands as it was drawn, whatever the client makes of its ids and spelling."""
    drawn = tuple(
        tokenizer().vocabulary.index(bytes([byte])) for byte in b'A<tool_call>[{"name": "f", "arguments": {"x":  1}}]</tool_call>'
    )
    spec = wire.ToolSpec(name="f", parameters='{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}')
    format_ = SmolLM2(tokenizer().special)
    it = World(text=TextModel(tokenizer(), ChatTemplate(TEMPLATE, tokenizer(), format_), format_))
    it.runtime.scripts.append(says(drawn))
    begin: list[wire.FromClient] = [wire.Tools(program=1, op=0, branch=0, tools=(spec,)), append(1, "q", role="user")]
    use = wire.ToolUse()
    it.send(wire.Open(program=1), *begin, wire.Gen(program=1, op=2, branch=0, var=2, tool_use=use))
    done = it.one(wire.Done)
    assert (done.value, [(call.name, call.arguments) for call in done.calls]) == ("A", [("f", '{"x":  1}')])
    first = it.runtime.prompts[it.sent(rt.Generate)[-1].request_id]
    told = [{"id": "other", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]
    it.send(wire.Close(program=1), wire.Open(program=1), *begin)
    it.send(append(2, "A", role="assistant", tool_calls=told), append(3, "7", role="tool", tool_call_id="other"))
    it.send(wire.Gen(program=1, op=4, branch=0, var=4, tool_use=use))
    second = it.runtime.prompts[it.sent(rt.Generate)[-1].request_id]
    assert second[: len(first) + len(drawn)] == [*first, *drawn]
    assert "7" in tokenizer().decode(second[len(first) + len(drawn) :], skip_special=False)


def test_it_can_be_turned_off() -> None:
    it = World(settings=config(max_remembered_ids=0))
    it.runtime.scripts.append(says(ODD))
    turns = [("user", "q"), ("assistant", PLAIN), ("user", "and?")]
    converse(it, 0, *turns[:1])
    assert converse(it, 1, *turns) == converse(World(), 0, *turns)


# ---- the memory itself ----------------------------------------------------------------------------------------------


def owner(name: str, salt: str = "") -> rt.Owner:
    return rt.Owner(tenant=name, program=1, cache_salt=salt)


def test_calls_are_one_turn_in_any_spelling() -> None:
    said = said_turn("t", "", [wire.ToolCall(id="x", name="f", arguments='{"b": 1, "a": "é"}')])
    told = {"tool_calls": [{"id": "y", "type": "function", "function": {"name": "f", "arguments": {"a": "é", "b": 1}}}]}
    assert told_turn("t", told) == said
    assert told_turn("t", {"tool_calls": [{"function": {"name": "f", "arguments": '{"a":"\\u00e9","b":1}'}}]}) == said
    assert told_turn("t", {}) != said
    assert told_turn("t", {"reasoning_content": "hm"}) == Turn("t", "hm")
    others: list[dict[str, Any]] = [
        {"name": "x"},
        {"tool_calls": 5},
        {"tool_calls": [5]},
        {"tool_calls": [{"function": {}}]},
        {"reasoning_content": 5},
    ]
    for fields in others:
        assert told_turn("t", fields) is None


def test_who_holds_most_forgets_first() -> None:
    memory = TurnMemory(5 * (64 + 10))
    place = b"place"
    ids = tuple(range(10))
    memory.note(owner("small"), place, Turn("x"), ids)
    for number in range(20):
        memory.note(owner("big"), place, Turn(str(number)), ids)
        memory.recall(owner("big"), place, Turn("0"))
    assert memory.recall(owner("small"), place, Turn("x")) == ids
    assert memory.recall(owner("big"), place, Turn("0")) == ids  # it is asked for all the time
    assert memory.recall(owner("big"), place, Turn("19")) == ids
    assert memory.recall(owner("big"), place, Turn("5")) == ()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.lists(st.integers(0, 2**31), min_size=1, max_size=40)),
        max_size=60,
    )
)
def test_bounds(entries: list[tuple[str, int, list[int]]]) -> None:
    memory = TurnMemory(500)
    latest: dict[tuple[str, int], tuple[int, ...]] = {}
    for name, number, ids in entries:
        memory.note(owner(name), bytes([number]), Turn("t"), ids)
        latest[name, number] = tuple(ids)
        assert memory.num_ids <= 500
        assert memory.recall(owner(name), bytes([number]), Turn("t")) == tuple(ids)
    held = 0
    for (name, number), said in latest.items():
        found = memory.recall(owner(name), bytes([number]), Turn("t"))
        assert found in ((), said)
        held += (len(said) + 64) * bool(found)
    assert held == memory.num_ids
