"""Text to tokens and back, as a prompt with the same would have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.transcript import TextModel
from radixserve_tokenizer.text.template import ChatTemplate
from radixserve_tokenizer.text.tokenizer import TextTokenizer
from radixserve_tokenizer.tools.jsonformats import SmolLM2
from tests.tokenizer.programs.harness import TEMPLATE, World, append, encode, gen, text_model, tokenizer

SPEC: dict[str, Any] = {
    "name": "f",
    "description": "does it",
    "parameters": '{"type": "object", "properties": {"x": {"type": "integer"}}}',
}


def reply(it: World, kind: Any, **body: Any) -> wire.Reply:
    it.send(wire.Query(id=len(it.of(wire.Reply)), kind=kind, body=body))
    return it.of(wire.Reply)[-1]


def test_special_tokens() -> None:
    with_bos = TextTokenizer.__new__(TextTokenizer)
    with_bos.__dict__.update(tokenizer().__dict__)
    with_bos.bos_token_id, with_bos.add_bos = 2, True
    it = World(text=replace(text_model(), tokenizer=with_bos))
    assert reply(it, "tokenize", text="hello", add_special_tokens=True).body["ids"] == [2, *encode("hello")]
    assert reply(it, "tokenize", text="hello").body["ids"] == list(encode("hello"))
    assert reply(it, "tokenize", text="hello", add_special_tokens=1).status == 400
    assert reply(World(), "tokenize", text="hello", add_special_tokens=True).body["ids"] == list(encode("hello"))


def test_tools_are_counted_as_they_are_shown() -> None:
    format_ = SmolLM2(tokenizer().special)
    it = World(text=TextModel(tokenizer(), ChatTemplate(TEMPLATE, tokenizer(), format_), format_))
    tools = (wire.ToolSpec(**SPEC),)
    it.send(wire.Open(program=1), wire.Tools(program=1, op=0, branch=0, tools=tools), append(1, "hi", role="user"), gen(2))
    prompt = it.runtime.prompts[it.sent(rt.Generate)[-1].request_id]
    messages = [{"role": "user", "content": "hi"}]
    assert reply(it, "tokenize", messages=messages, tools=[SPEC]).body["ids"] == prompt
    assert reply(it, "tokenize", messages=messages).body["ids"] != prompt
    assert reply(it, "tokenize", messages=messages, tools=[]).status == 200


@pytest.mark.parametrize("tools", [5, [5], [{"description": "x"}], [{"name": "a b"}], [{"name": "f"}, {"name": "f"}]])
def test_tools_that_are_none(tools: Any) -> None:
    answer = reply(World(), "tokenize", messages=[{"role": "user", "content": "hi"}], tools=tools)
    assert (answer.status, answer.body) == (400, {})


def test_each_token_apart() -> None:
    ids = list(encode("hello é"))
    texts = reply(World(), "detokenize", ids=ids, separately=True).body["texts"]
    assert texts[0] == "hello"
    assert len(texts) == len(ids)
    assert texts[-1] == "\ufffd"
    assert reply(World(), "detokenize", ids=ids).body["text"] == "hello é"
