"""/tokenize and /detokenize in vLLM's forms."""

from __future__ import annotations

import pytest

from radixserve.http.responses import DetokenizedText, Tokens
from radixserve_lang.errors import QueryFailedError

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture
def engine(fake):
    fake.answers["tokenize"] = {"ids": [5, 6], "text": ""}

    def detokenize(body):
        return {"texts": [f"<{one}>" for one in body["ids"]]} if body.get("separately") else {"text": "hi there"}

    fake.answers["detokenize"] = detokenize
    return fake


def test_prompt(api, engine):
    answer = api("/tokenize", {"model": "tiny", "prompt": "hi"})
    Tokens.model_validate_json(answer.content)
    assert answer.json() == {"count": 2, "max_model_len": 512, "tokens": [5, 6], "token_strs": None}
    assert engine.queries[-1] == ("tokenize", {"text": "hi", "add_special_tokens": True})
    answer = api("/tokenize", {"prompt": "", "add_special_tokens": False, "return_token_strs": True})
    assert answer.json()["token_strs"] == ["<5>", "<6>"]
    assert engine.queries[-2] == ("tokenize", {"text": "", "add_special_tokens": False})


def test_messages(api, engine):
    assert api("/tokenize", {"messages": HI, "tools": [TOOL], "add_generation_prompt": False}).json()["count"] == 2
    kind, body = engine.queries[-1]
    assert (kind, body["add_generation_prompt"]) == ("tokenize", False)
    assert body["messages"] == HI
    assert [one["name"] for one in body["tools"]] == ["f"]
    more = [*HI, {"role": "assistant", "content": "The"}]
    assert api("/tokenize", {"messages": more, "continue_final_message": True}).json()["count"] == 4
    assert engine.queries[-2][1]["messages"] == HI
    assert engine.queries[-1] == ("tokenize", {"text": "The", "add_special_tokens": False})


def test_detokenize(api, engine):
    answer = api("/detokenize", {"model": "tiny", "tokens": [1, 2]})
    DetokenizedText.model_validate_json(answer.content)
    assert answer.json() == {"prompt": "hi there"}
    assert engine.queries[-1] == ("detokenize", {"ids": [1, 2]})
    assert api("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": HI, "tools": 5}, "tools"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
    ],
)
def test_refused(api, engine, path, body, param):
    answer = api(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_they_need_a_key(api, engine):
    engine.answers["tenant"] = QueryFailedError(401, "no such key")
    assert api("/tokenize", {"prompt": "x"}).status_code == 401
    assert api("/detokenize", {"tokens": [1]}).status_code == 401
