from __future__ import annotations

import pytest

from radixserve.http.responses import ChatAnswer, ChatChunk
from radixserve_tokenizer.protocol import Usage
from tests.http.fake_engine import Script, scripted
from tests.http.harness import CHAT, events

HI = [{"role": "user", "content": "hi"}]


def body(**more):
    return {"model": "tiny", "messages": HI, **more}


def test_answer_and_program(api, fake):
    answer = api(CHAT, body(), authorization="Bearer sk-1")
    assert answer.status_code == 200
    parsed = ChatAnswer.model_validate_json(answer.content)
    assert parsed.choices[0].message.content == "Hello world!"
    assert parsed.usage.model_dump() == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert fake.last.opening["api_key"] == "sk-1"
    assert fake.last.prompt == [("user", "hi")]
    assert len(fake.last.frames) == 1  # everything in one frame
    assert [gen.branch for gen in fake.last.gens] == [0]
    assert fake.last.closed.wait(5)


def test_stream_chunks(api, fake):
    answer = api(CHAT, body(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(answer)
    assert done == "[DONE]"
    for chunk in chunks:
        ChatChunk.model_validate(chunk)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello world!"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert deltas[-1] == {}
    assert all("usage" not in chunk for chunk in chunks)


def test_stream_usage_comes_last(api):
    *chunks, usage, _ = events(api(CHAT, body(stream=True, stream_options={"include_usage": True})))
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert all(chunk["usage"] is None for chunk in chunks)


def test_stream_options_need_stream(api):
    answer = api(CHAT, body(stream_options={"include_usage": True}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stream_options"


def uneven():
    """Choices that end at different lengths."""
    return scripted(
        *(
            Script(
                tokens=tuple("abcd"[: i + 1]),
                finish_reason="length" if i == 3 else "stop",
                usage=Usage(prompt_tokens=10, cached_tokens=2 + 7 * (i > 0), output_tokens=i + 1),
            )
            for i in range(4)
        )
    )


@pytest.mark.parametrize("stream", [False, True])
def test_bug_05_every_choice_ends_once(api, fake, stream):
    fake.handler = uneven()
    answer = api(
        CHAT, body(n=4, seed=1, temperature=1, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
    )
    assert answer.status_code == 200
    texts = dict.fromkeys(range(4), "")
    reasons: dict[int, list[str]] = {i: [] for i in range(4)}
    if stream:
        *chunks, last, _ = events(answer)
        usage = last["usage"]
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
                if choice["finish_reason"]:
                    reasons[choice["index"]].append(choice["finish_reason"])
    else:
        usage = answer.json()["usage"]
        for choice in answer.json()["choices"]:
            texts[choice["index"]] += choice["message"]["content"]
            reasons[choice["index"]].append(choice["finish_reason"])
    assert texts == {0: "a", 1: "ab", 2: "abc", 3: "abcd"}
    assert reasons == {0: ["stop"], 1: ["stop"], 2: ["stop"], 3: ["length"]}
    # The prompt once, every choice; the branches' hits on what the first computed do not count as cached.
    assert usage == {
        "prompt_tokens": 10,
        "completion_tokens": 10,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert fake.last.opening["seed"] == 1
    assert [(fork.first, fork.count) for fork in fake.last.forks] == [(1, 4)]
    assert [gen.branch for gen in fake.last.gens] == [1, 2, 3, 4]


@pytest.mark.parametrize("n", [0, -1, 10**9, 513])
def test_bug_06_absurd_n(api, fake, n):
    answer = api(CHAT, body(n=n))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"
    assert "512" in answer.json()["error"]["message"]
    assert fake.channels == []


def test_bug_06_largest_n(api, fake):
    answer = api(CHAT, body(n=512, max_tokens=2))
    assert sorted(choice["index"] for choice in answer.json()["choices"]) == list(range(512))
    assert sum(fork.count for fork in fake.last.forks) == 512
    assert max(fork.count for fork in fake.last.forks) <= 256
    assert [gen.branch for gen in fake.last.gens] == list(range(1, 513))


def test_stop_reason(api, fake):
    fake.handler = scripted(Script(tokens=("ABC",), stop_reason="DEFGHIJ"))
    choice = api(CHAT, body(stop="DEFGHIJ")).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"], choice["matched_stop"]) == ("stop", "DEFGHIJ", "DEFGHIJ")
    assert fake.last.gens[0].sampling.stop == ("DEFGHIJ",)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stops", [{"stop": ["\n"]}, {"stop_token_ids": [13]}])
def test_bug_03_stop_with_logprobs(api, fake, stream, include, stops):
    fake.handler = scripted(Script(tokens=("a", "b", "\n") if include else ("a", "b"), stop_reason="\n"))
    answer = api(CHAT, body(logprobs=True, top_logprobs=2, include_stop_str_in_output=include, stream=stream, **stops))
    assert answer.status_code == 200
    if stream:
        chunks = [chunk for chunk in events(answer) if chunk != "[DONE]"]
        entries = [e for chunk in chunks for c in chunk["choices"] if c["logprobs"] for e in c["logprobs"]["content"]]
        text = "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"])
    else:
        choice = answer.json()["choices"][0]
        entries, text = choice["logprobs"]["content"], choice["message"]["content"]
    assert "".join(one["token"] for one in entries) == text == ("ab\n" if include else "ab")
    assert all(len(one["top_logprobs"]) == 2 and one["bytes"] == list(one["token"].encode()) for one in entries)
    sampling = fake.last.gens[0].sampling
    assert (sampling.logprobs, sampling.include_stop) == (2, include)


def test_sampling_arguments_travel(api, fake):
    api(
        CHAT,
        body(
            max_completion_tokens=7,
            min_tokens=2,
            temperature=0.5,
            top_p=0.9,
            top_k=-1,
            min_p=0.1,
            repetition_penalty=1.1,
            presence_penalty=-1,
            frequency_penalty=2,
            logit_bias={"5": -100, "7": 3},
            stop=["a", "b", "a"],
            stop_token_ids=[3],
            ignore_eos=True,
            skip_special_tokens=False,
            cache_salt="s",
            service_tier="flex",
        ),
    )
    sampling = fake.last.gens[0].sampling
    assert (sampling.max_tokens, sampling.min_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 2, 0.5, 0.9, 0)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (
        0.1,
        1.1,
        -1,
        2,
    )
    assert (sampling.logit_bias, sampling.stop, sampling.stop_token_ids) == ({5: -100.0, 7: 3.0}, ("a", "b"), (3,))
    assert sampling.ignore_eos
    assert not sampling.skip_special_tokens
    assert (fake.last.opening["cache_salt"], fake.last.opening["priority"], fake.last.opening["seed"]) == (
        "s",
        "background",
        None,
    )


def test_null_means_default(api, fake):
    names = (
        "temperature",
        "top_p",
        "n",
        "stop",
        "logit_bias",
        "max_tokens",
        "seed",
        "logprobs",
        "stream",
        "response_format",
        "tools",
        "user",
    )
    assert api(CHAT, body(**dict.fromkeys(names))).status_code == 200
    sampling = fake.last.gens[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.logprobs) == (1.0, 1.0, None, -1)


def test_unknown_fields_are_ignored(api):
    assert api(CHAT, body(user="u", store=True, metadata={"a": "b"}, prompt_cache_key="k", nonsense=[1])).status_code == 200


def test_text_that_only_done_has(api, fake):
    """A stream whose deltas stop short of the value still sends all of it, once."""
    from radixserve_tokenizer.protocol import Admitted, Delta, Done, Gen

    def handler(channel, messages):
        for gen in [one for one in messages if isinstance(one, Gen)]:
            channel.say(Admitted(program=channel.program))
            channel.say(Delta(program=channel.program, op=gen.op, var=gen.var, text="ab"))
            channel.say(Delta(program=channel.program, op=gen.op, var=gen.var, text=""))
            channel.say(Done(program=channel.program, op=gen.op, var=gen.var, value="abcd"))

    fake.handler = handler
    chunks = [chunk for chunk in events(api(CHAT, body(stream=True))) if chunk != "[DONE]"]
    assert [c["delta"].get("content") for chunk in chunks for c in chunk["choices"]] == ["", "ab", "cd", None]


def test_models(api):
    listed = api("/v1/models").json()
    assert [one["id"] for one in listed["data"]] == ["tiny"]
    assert api("/v1/models/tiny").json()["max_model_len"] == 512
    assert api("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_unknown_model_lists_the_names(api, fake):
    answer = api(CHAT, {**body(), "model": "gpt-4o"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "'tiny'" in answer.json()["error"]["message"]
    assert fake.channels == []
