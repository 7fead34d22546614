"""Fields that clients know from elsewhere: what can't be honoured is a 400 that names it, what asks for nothing and what nobody knows is not."""

from __future__ import annotations

import pytest

from radixserve_tokenizer.protocol import ToolCall
from tests.http.fake_engine import Script, scripted
from tests.http.harness import CHAT, MESSAGES, RESPONSES, TEXT, events

HI = [{"role": "user", "content": "hi"}]
BODIES = {
    CHAT: {"model": "tiny", "messages": HI},
    TEXT: {"model": "tiny", "prompt": "hi"},
    RESPONSES: {"model": "tiny", "input": "hi"},
    MESSAGES: {"model": "tiny", "messages": HI, "max_tokens": 5},
}
EVERYWHERE = tuple(BODIES)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TIME = {"type": "function", "function": {"name": "time"}}


def refused_field(answer):
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error.get("param", error["message"].split("'")[1])


@pytest.mark.parametrize(
    ("paths", "fields", "param"),
    [
        (EVERYWHERE, {"modalities": ["text", "audio"]}, "modalities"),
        (EVERYWHERE, {"audio": {"voice": "x", "format": "wav"}}, "audio"),
        (EVERYWHERE, {"web_search_options": {}}, "web_search_options"),
        (EVERYWHERE, {"verbosity": "low"}, "verbosity"),
        (EVERYWHERE, {"reasoning_effort": "low"}, "reasoning_effort"),
        (EVERYWHERE[1:], {"max_completion_tokens": 5}, "max_completion_tokens"),
        (EVERYWHERE[1:], {"functions": [{"name": "f"}]}, "functions"),
        (EVERYWHERE[1:], {"function_call": {"name": "f"}}, "function_call"),
        (EVERYWHERE[2:], {"logprobs": True}, "logprobs"),
        ((TEXT, MESSAGES), {"top_logprobs": 2}, "top_logprobs"),
        ((TEXT,), {"tools": [WEATHER]}, "tools"),
        ((TEXT,), {"tool_choice": "required"}, "tool_choice"),
        ((TEXT, RESPONSES), {"messages": HI}, "messages"),
        (
            (CHAT, RESPONSES),
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        (
            (CHAT, TEXT),
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
        ((CHAT, TEXT), {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ((CHAT, TEXT, RESPONSES), {"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ((RESPONSES,), {"truncation": "auto"}, "truncation"),
        ((RESPONSES,), {"include": ["nonsense"]}, "include[0]"),
        ((RESPONSES,), {"include": ["message.output_text.logprobs", 5]}, "include[1]"),
        ((RESPONSES,), {"metadata": {"a": 5}}, "metadata"),
        ((RESPONSES,), {"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ((RESPONSES,), {"metadata": {"a": "x" * 513}}, "metadata"),
        ((RESPONSES,), {"reasoning": 5}, "reasoning"),
        ((RESPONSES,), {"reasoning": {"generate_summary": "concise"}}, "reasoning.generate_summary"),
        ((CHAT,), {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]}, "messages[0].content[1]"),
        ((CHAT,), {"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}, *HI]}, "messages[0].audio"),
        (
            (RESPONSES,),
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
        ),
        ((MESSAGES,), {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
    ],
)
def test_what_can_not_be_honoured_is_named(api, fake, paths, fields, param):
    for path in paths:
        assert refused_field(api(path, {**BODIES[path], **fields})) == param
    assert fake.channels == []


@pytest.mark.parametrize(
    ("paths", "fields"),
    [
        (EVERYWHERE, {"prompt_cache_key": "k", "safety_identifier": "s", "user": "u", "prompt_cache_retention": "24h"}),
        (EVERYWHERE, {"modalities": ["text"], "verbosity": "medium", "reasoning_effort": "none", "audio": None}),
        (EVERYWHERE, {"something_that_nobody_knows": {"a": [1]}}),
        ((CHAT,), {"store": True, "metadata": {"a": "b"}, "prediction": {"type": "content", "content": "x"}}),
        ((CHAT,), {"parallel_tool_calls": False, "tools": [], "tool_choice": "none"}),
        ((CHAT,), {"max_completion_tokens": 5, "max_tokens": 5}),
        ((CHAT, TEXT), {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}),
        ((RESPONSES,), {"stream": True, "stream_options": {"include_obfuscation": False}}),
        (
            (RESPONSES,),
            {"truncation": "disabled", "include": ["reasoning.encrypted_content"], "store": False, "max_tool_calls": 3},
        ),
        ((RESPONSES,), {"reasoning": {"effort": None, "summary": "auto"}, "text": {"verbosity": "medium"}}),
        ((MESSAGES,), {"metadata": {"user_id": "u"}, "logprobs": False}),
        ((TEXT,), {"tools": [], "tool_choice": "none", "messages": None}),
    ],
)
def test_what_asks_for_nothing_is_taken(api, paths, fields):
    for path in paths:
        answer = api(path, {**BODIES[path], **fields})
        assert answer.status_code == 200, (path, answer.text)


def test_metadata_comes_back(api):
    assert api(RESPONSES, {**BODIES[RESPONSES], "metadata": {"a": "b"}}).json()["metadata"] == {"a": "b"}


def test_log_probabilities_of_a_response(api):
    for more in ({"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}):
        [item] = api(RESPONSES, {**BODIES[RESPONSES], **more}).json()["output"]
        logprobs = item["content"][0]["logprobs"]
        assert [one["token"] for one in logprobs] == ["Hello", " world", "!"]
        assert {len(one["top_logprobs"]) for one in logprobs} == {more.get("top_logprobs", 0)}


@pytest.mark.parametrize("choice", ["auto", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [WEATHER]}}])
def test_several_choices_with_calls_are_streamed_apart(api, fake, choice):
    calls = [(ToolCall(id=f"call_{number}", name="weather", arguments=f'{{"city": "{number}"}}'),) for number in range(3)]
    fake.handler = scripted(*(Script(tokens=("Let me",), calls=one) for one in calls))
    body = {**BODIES[CHAT], "n": 3, "tools": [WEATHER, TIME], "tool_choice": choice, "parallel_tool_calls": False, "stream": True}
    chunks = events(api(CHAT, {**body, "stream_options": {"include_usage": True}}))
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == []
    told: dict[int, list] = {0: [], 1: [], 2: []}
    for chunk in chunks[:-2]:
        for one in chunk["choices"]:
            told[one["index"]].append(one)
    for number, parts in told.items():
        deltas = [one["delta"] for one in parts]
        assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
        pieces = [call for delta in deltas for call in delta.get("tool_calls", [])]
        assert {one["index"] for one in pieces} == {0}
        assert [one["id"] for one in pieces if "id" in one] == [f"call_{number}"]
        assert "".join(one["function"].get("arguments", "") for one in pieces) == f'{{"city": "{number}"}}'
        assert [one["finish_reason"] for one in parts if one["finish_reason"]] == ["tool_calls"]
    uses = {(gen.tool_use.mode, gen.tool_use.names, gen.tool_use.parallel) for gen in fake.last.gens}
    assert uses == {("auto", () if choice == "auto" else ("weather",), False)}
    assert [one.name for one in fake.last.tools] == ["weather", "time"]


def test_shapes_of_lm_evals_local_completions(api, fake):
    """Prompts as ids, several at once, scored by echo with one token that is thrown away."""
    fake.handler = scripted(Script(tokens=("x",), prompt_tokens=("a", "b", "c")))
    fake.answers["detokenize"] = {"text": "abc"}
    body = {
        "model": "tiny", "prompt": [[1, 2, 3], [4, 5, 6]], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True,
    }  # fmt: skip
    answer = api(TEXT, body).json()
    assert sorted(choice["index"] for choice in answer["choices"]) == [0, 1]
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"][0] is None
        assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 4
        for token, top in zip(logprobs["tokens"][1:-1], logprobs["top_logprobs"][1:-1], strict=True):
            assert isinstance(max(top.values()), float), token
    generated = {**body, "prompt": ["a", "b"], "max_tokens": 16, "stop": ["\n", "Question:"], "echo": False, "logprobs": None}
    assert [choice["index"] for choice in api(TEXT, generated).json()["choices"]] == [0, 1]
