from __future__ import annotations

import pytest

from radixserve.http.responses import TextAnswer
from radixserve_tokenizer.protocol import Usage
from tests.http.fake_engine import Script, scripted
from tests.http.harness import TEXT, events


def body(prompt="Once", **more):
    return {"model": "tiny", "prompt": prompt, **more}


def test_answer(api, fake):
    answer = api(TEXT, body(max_tokens=5))
    parsed = TextAnswer.model_validate_json(answer.content)
    assert parsed.choices[0].text == "Hello world!"
    assert parsed.usage is not None
    assert parsed.usage.prompt_tokens_details.cached_tokens == 4
    assert fake.last.prompt == [("", "Once")]
    assert fake.last.gens[0].sampling.max_tokens == 5


def test_stream(api):
    *chunks, done = events(api(TEXT, body(stream=True)))
    assert done == "[DONE]"
    for chunk in chunks:
        TextAnswer.model_validate(chunk)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello world!"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_list_is_prompt_major(api, fake, stream):
    def handler(channel, messages):
        # Every program says which it is.
        scripted(
            *(
                Script(
                    tokens=(f"p{channel.program}c{i}",),
                    usage=Usage(prompt_tokens=5, cached_tokens=channel.program, output_tokens=1),
                )
                for i in range(2)
            )
        )(channel, messages)

    fake.handler = handler
    answer = api(TEXT, body([[1, 2], [3]], n=2, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})))
    if stream:
        texts = dict.fromkeys(range(4), "")
        *chunks, last, _ = events(answer)
        for chunk in chunks:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        usage = last["usage"]
    else:
        texts = {choice["index"]: choice["text"] for choice in answer.json()["choices"]}
        usage = answer.json()["usage"]
    assert texts == {0: "p0c0", 1: "p0c1", 2: "p1c0", 3: "p1c1"}
    assert usage == {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert [channel.prompt for channel in fake.channels] == [[("", (1, 2))], [("", (3,))]]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], [[], [1]], ["a", ""]])
@pytest.mark.parametrize("more", [{}, {"echo": True, "max_tokens": 0}, {"echo": True, "max_tokens": 1}])
def test_bug_20_empty_prompt(api, fake, prompt, more):
    answer = api(TEXT, body(prompt, **more))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("prompt")
    assert fake.channels == []
    assert api(TEXT, body()).status_code == 200


@pytest.mark.parametrize(
    "prompt", [1, True, {}, [1, "a"], ["a", 1], [[1], "a"], [1, True], [1.5], [[1.0]], [-1], [1000], [[5], [2**63]], [None], [{}]]
)
def test_prompts_that_are_none(api, fake, prompt):
    answer = api(TEXT, body(prompt))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("prompt")
    assert fake.channels == []


def test_logprobs_line_up_with_text(api, fake):
    fake.handler = scripted(Script(tokens=("né", "😀", "!")))
    logprobs = api(TEXT, body(logprobs=2)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["né", "😀", "!"]
    assert logprobs["token_logprobs"] == [-0.5, -0.5, -0.5]
    assert logprobs["text_offset"] == [0, 2, 3]
    assert logprobs["top_logprobs"][0] == {"alt0": -1.0, "alt1": -2.0, "né": -0.5}


def test_logprobs_0_has_no_alternatives(api):
    logprobs = api(TEXT, body(logprobs=0)).json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-0.5] * 3
    assert logprobs["top_logprobs"] is None


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_prompt_logprobs(api, fake, max_tokens, stream):
    fake.answers["detokenize"] = {"text": "the prompt"}
    out = ("Z",) if max_tokens else ()
    fake.handler = scripted(Script(tokens=out, prompt_tokens=("the", " prompt"), finish_reason="length"))
    answer = api(TEXT, body([5, 6], echo=True, logprobs=1, max_tokens=max_tokens, stream=stream))
    choices = [chunk["choices"][0] for chunk in events(answer)[:-1]] if stream else answer.json()["choices"]
    assert len(choices) == 1
    assert choices[0]["text"] == "the prompt" + "".join(out)
    logprobs = choices[0]["logprobs"]
    assert logprobs["tokens"] == ["the", " prompt", *out]
    assert logprobs["token_logprobs"] == [None, -0.5, *([-0.5] * max_tokens)]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"] == [0, 3, 10][: 2 + max_tokens]
    sampling = fake.last.gens[0].sampling
    assert (sampling.max_tokens, sampling.logprobs, sampling.prompt_logprobs) == (max_tokens, 1, 1)
    assert fake.queries[-1] == ("detokenize", {"ids": [5, 6]})


@pytest.mark.parametrize("stream", [False, True])
def test_echo_of_text(api, stream):
    answer = api(TEXT, body("Once", echo=True, n=2, stream=stream))
    texts = ["", ""]
    for choice in [c for chunk in events(answer)[:-1] for c in chunk["choices"]] if stream else answer.json()["choices"]:
        texts[choice["index"]] += choice["text"]
    assert texts == ["OnceHello world!"] * 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stops", [{"stop": ["\n"]}, {"stop_token_ids": [13]}])
def test_bug_03_stop_with_logprobs(api, fake, stream, include, stops):
    fake.handler = scripted(Script(tokens=("a", "b", "\n") if include else ("a", "b"), stop_reason="\n"))
    answer = api(TEXT, body(logprobs=2, include_stop_str_in_output=include, stream=stream, **stops))
    assert answer.status_code == 200
    choices = [chunk["choices"][0] for chunk in events(answer)[:-1]] if stream else answer.json()["choices"]
    tokens = [token for choice in choices for token in choice["logprobs"]["tokens"]]
    offsets = [offset for choice in choices for offset in choice["logprobs"]["text_offset"]]
    assert "".join(tokens) == "".join(choice["text"] for choice in choices) == ("ab\n" if include else "ab")
    assert offsets == list(range(len(tokens)))
    assert choices[-1]["stop_reason"] == "\n"


def test_lm_eval_shape(api, fake):
    """What lm-eval's local-completions sends to score a continuation."""
    fake.answers["detokenize"] = {"text": "a b c"}
    fake.handler = scripted(Script(tokens=("d",), prompt_tokens=("a", " b", " c"), finish_reason="length"))
    answer = api(TEXT, body([[1, 2, 3]], temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True))
    logprobs = answer.json()["choices"][0]["logprobs"]
    TextAnswer.model_validate_json(answer.content)
    assert answer.json()["choices"][0]["prompt_token_ids"] == [0, 1, 2]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 4


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": 1}, "echo"),
    ],
)
def test_what_completions_cannot_do(api, more, param):
    answer = api(TEXT, body(**more))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_best_of_equal_to_n(api):
    assert len(api(TEXT, body(n=2, best_of=2)).json()["choices"]) == 2


def test_limit_on_prompts_and_choices(api, fake):
    assert "512" in api(TEXT, body(["a"] * 513)).json()["error"]["message"]
    assert "512" in api(TEXT, body(["a"] * 300, n=2)).json()["error"]["message"]
    assert fake.channels == []
