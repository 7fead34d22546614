"""Sampling limits, context, seeds, stop bookkeeping, log-probabilities, deltas and credits."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from tests.tokenizer.programs.harness import EOS, FakeRuntime, Script, World, append, config, encode, gen, says, token, tokenizer


def opened(seed: int | None = 7, credits: int = 64, max_context: int = 4096) -> World:
    world = World(runtime=FakeRuntime(max_context=max_context), settings=config(max_logit_bias=8))
    return world.send(wire.Open(program=1, seed=seed, credits=credits))


def generated(script: Script, *, credits: int = 64, **sampling: Any) -> World:
    world = opened(credits=credits)
    world.runtime.scripts.append(script)
    return world.send(append(0, "hello"), gen(1, stream=True, **sampling))


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("param", "value", "names"),
    [
        ("temperature", NAN, "between 0 and 2"),
        ("temperature", INF, "between 0 and 2"),
        ("temperature", -0.1, "between 0 and 2"),
        ("temperature", 2.01, "between 0 and 2"),
        ("top_p", -0.1, "between 0 and 1"),
        ("top_p", NAN, "between 0 and 1"),
        ("top_p", 1.5, "between 0 and 1"),
        ("min_p", -0.5, "between 0 and 1"),
        ("min_p", NAN, "between 0 and 1"),
        ("presence_penalty", 2.5, "between -2 and 2"),
        ("presence_penalty", NAN, "between -2 and 2"),
        ("frequency_penalty", -INF, "between -2 and 2"),
        ("repetition_penalty", 0.0, "above 0 and at most 10"),
        ("repetition_penalty", NAN, "above 0 and at most 10"),
        ("repetition_penalty", INF, "above 0 and at most 10"),
        ("top_k", -2, "between -1 and"),
        ("logprobs", 21, "between -1 and 20"),
        ("prompt_logprobs", -2, "between -1 and 20"),
        ("max_tokens", -1, "0 or more"),
        ("min_tokens", -1, "between 0 and"),
        ("seed", 1 << 64, "64 bits"),
        ("seed", -(1 << 63) - 1, "64 bits"),
        ("logit_bias", {5: NAN}, "between -100 and 100"),
        ("logit_bias", {5: 101.0}, "between -100 and 100"),
        ("logit_bias", {-1: 1.0}, "not in the vocabulary"),
        ("logit_bias", {100000: 1.0}, "not in the vocabulary"),
        ("logit_bias", dict.fromkeys(range(9), 1.0), "at most 8"),
        ("stop", ("a",) * 5, "at most 4 strings, not 5"),
        ("stop", ("a",) * 100_000, "at most 4"),
        ("stop", ("",), "must not be empty"),
        ("stop", ("x" * 1025,), "at most 1024 bytes"),
        ("stop", ("é" * 600,), "at most 1024 bytes"),
        ("stop_token_ids", (-1,), "not in the vocabulary"),
        ("stop_token_ids", (99999,), "not in the vocabulary"),
        ("stop_token_ids", (5,) * 1025, "at most 1024"),
    ],
)
def test_every_limit_is_named(param: str, value: Any, names: str) -> None:
    world = opened().send(append(0, "hello"), gen(1, **{param: value}))
    failed = world.one(wire.Failed)
    assert (failed.status, failed.code, failed.param) == (400, "invalid_value", param)
    assert names in failed.message
    assert param in failed.message or param == "stop"
    assert not world.sent(rt.Generate)
    assert world.core.services.admission.num_queued == 0


def test_limits_themselves_are_allowed() -> None:
    world = opened().send(append(0, "hello"))
    world.send(
        gen(
            1,
            temperature=2.0,
            top_p=1.0,
            min_p=1.0,
            presence_penalty=-2.0,
            frequency_penalty=2.0,
            repetition_penalty=10.0,
            top_k=-1,
        ),
        gen(2, temperature=0.0, logit_bias={0: -100.0, 5: 100.0}, stop=("a", "b", "a", "c"), seed=-1, logprobs=20, max_tokens=5),
    )
    first, second = (m.sampling for m in world.sent(rt.Generate))
    assert first.top_k == 0
    assert second.stop == (b"a", b"b", b"c")
    assert second.seed == (1 << 64) - 1
    assert len(world.of(wire.Done)) == 2


def test_min_tokens_beyond_max_tokens() -> None:
    world = opened().send(append(0, "hello"), gen(1, min_tokens=6, max_tokens=5))
    assert world.one(wire.Failed).param == "min_tokens"


@pytest.mark.parametrize("length", [1, 510, 511, 512, 513])
@pytest.mark.parametrize("max_tokens", [None, 1, 2, 512, 10**9])
def test_context_rule(length: int, max_tokens: int | None) -> None:
    world = opened(max_context=512)
    world.send(append(0, wire.TokenIds(ids=(10,) * length)), gen(1, max_tokens=max_tokens))
    fits = length < 512 and (max_tokens is None or length + max_tokens <= 512)
    if fits:
        assert world.sent(rt.Generate)[0].sampling.max_tokens == (512 - length if max_tokens is None else max_tokens)
        assert world.one(wire.Done)
    else:
        failed = world.one(wire.Failed)
        assert (failed.status, failed.code) == (400, "context_length_exceeded")
        assert failed.message.startswith("This model's maximum context length is 512 tokens. However, ")


@pytest.mark.parametrize("parts", [(), ("",), (wire.TokenIds(ids=()),)])
def test_an_empty_prompt_is_refused_and_the_next_is_served(parts: tuple[Any, ...]) -> None:
    world = opened()
    if parts:
        world.send(append(0, *parts))
    world.send(gen(1, max_tokens=1))
    assert world.one(wire.Failed).message.startswith("the prompt is empty")
    assert world.one(wire.Failed).status == 400
    world.send(wire.Open(program=2), append(0, "a", program=2), gen(1, program=2))
    assert world.one(wire.Done)


def test_seeds_depend_on_the_place_alone() -> None:
    def seeds(program_seed: int | None, noise: bool) -> list[int]:
        world = opened(seed=program_seed)
        if noise:
            world.send(append(0, "a"), append(1, "b"))
        else:
            world.send(append(0, "ab"))
        world.send(wire.Fork(program=1, op=2, branch=0, first=1, count=3))
        order = (3, 1, 2) if noise else (1, 2, 3)
        world.send(*(gen(10 + i, branch=b) for i, b in enumerate(order)))
        world.send(*(gen(20 + i, branch=b) for i, b in enumerate(order)))
        found = {}
        for index, message in enumerate(world.sent(rt.Generate)):
            found[order[index % 3], index // 3] = message.sampling.seed
        return [found[key] for key in sorted(found)]

    first = seeds(7, noise=False)
    assert len(set(first)) == 6
    assert first == seeds(7, noise=True)
    assert not set(first) & set(seeds(8, noise=False))
    assert seeds(None, noise=False) != seeds(None, noise=False)


def test_two_forks_of_one_branch_have_different_seeds() -> None:
    world = opened().send(append(0, "a"))
    world.send(wire.Fork(program=1, op=1, branch=0, first=1, count=1), wire.Fork(program=1, op=2, branch=0, first=2, count=1))
    world.send(gen(3, branch=1), gen(4, branch=2))
    assert len({m.sampling.seed for m in world.sent(rt.Generate)}) == 2


# ---- stops ----------------------------------------------------------------------------------------------------------


def stop_script(*pieces: str | list[int], stop: str, cut: int) -> Script:
    """The last piece completes the stop string, so nothing is held any more and `Finished` comes in the same frame."""
    return says(*pieces, stop_token_id=-1, stop=stop.encode(), cut_bytes=cut)


@pytest.mark.parametrize("include", [False, True])
def test_stop_between_tokens(include: bool) -> None:
    world = generated(stop_script("ABC", "\n", stop="\n", cut=1), stop=("\n",), include_stop=include, logprobs=2)
    done = world.one(wire.Done)
    expected = "ABC\n" if include else "ABC"
    assert (done.value, done.token_ids, done.stop_reason, done.finish_reason) == (expected, encode(expected), "\n", "stop")
    assert [entry.token_id for entry in done.logprobs] == list(done.token_ids)
    assert all(len(entry.top) == 2 for entry in done.logprobs)
    assert done.usage.output_tokens == 2
    check_deltas(world, done)


@pytest.mark.parametrize("include", [False, True])
def test_stop_inside_a_token(include: bool) -> None:
    # The token "CX" is cut: "B" wholly before stays, "C" is encoded again.
    world = generated(stop_script("B", [token("CX")], stop="X", cut=1), stop=("X",), include_stop=include, logprobs=1)
    done = world.one(wire.Done)
    assert done.value == ("BCX" if include else "BC")
    assert done.token_ids == ((token("B"), token("CX")) if include else (token("B"), token("C")))
    assert [entry.token_id for entry in done.logprobs] == list(done.token_ids)
    assert "".join(entry.raw.decode() for entry in done.logprobs) == done.value
    assert done.num_branch_tokens == 1 + 2
    check_deltas(world, done)
    world.send(gen(2))
    base = world.sent(rt.Generate)[1].base
    assert (base.length, base.new_ids) == (1, done.token_ids)


def test_text_that_may_begin_a_stop_string_is_withheld_and_released() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "hello"), gen(1, stream=True, stop=("DEFGHIJ",)))
    request_id = world.sent(rt.Generate)[0].request_id
    seen: list[str] = []
    for piece, hold in [("A", 0), ("D", 1), ("E", 2), ("x", 0), ("D", 1), ("EFG", 4)]:
        world.core.on_runtime(rt.Tokens(request_id=request_id, token_ids=encode(piece), hold_bytes=hold))
        seen.append("".join(e.text for e in world.flush() if isinstance(e, wire.Delta)))
    assert seen == ["A", "", "", "DEx", "", ""]
    world.core.on_runtime(rt.Tokens(request_id=request_id, token_ids=encode("HIJK")))
    usage = rt.Usage(prompt_tokens=1, cached_tokens=0, output_tokens=9)
    world.core.on_runtime(rt.Finished(request_id=request_id, reason="stop", usage=usage, stop=b"DEFGHIJ", cut_bytes=8))
    world.flush()
    done = world.one(wire.Done)
    assert (done.value, done.stop_reason) == ("ADEx", "DEFGHIJ")
    check_deltas(world, done)


@pytest.mark.parametrize("include", [False, True])
def test_stop_token(include: bool) -> None:
    stop_id = token("Z")
    world = generated(says("AB", stop_token_id=stop_id), stop_token_ids=(stop_id,), include_stop=include, logprobs=0)
    done = world.one(wire.Done)
    assert done.value == ("ABZ" if include else "AB")
    assert done.token_ids == encode(done.value)
    assert (done.stop_reason, done.finish_reason, done.usage.output_tokens) == (stop_id, "stop", 2)
    assert [entry.token_id for entry in done.logprobs] == list(done.token_ids)
    check_deltas(world, done)


def test_the_end_of_sequence_token_is_nowhere() -> None:
    done = generated(says("AB"), logprobs=0, include_stop=True).one(wire.Done)
    assert (done.value, done.token_ids, done.stop_reason, len(done.logprobs)) == ("AB", encode("AB"), None, 1)
    assert done.usage.output_tokens == 2


def test_a_would_be_stop_token_that_stops_nothing_is_text_after_all() -> None:
    stop_id = token("Z")
    done_world = generated(says("A", [stop_id], "B", reason="length"), stop_token_ids=(stop_id,), min_tokens=3)
    done = done_world.one(wire.Done)
    assert (done.value, done.finish_reason) == ("AZB", "length")
    check_deltas(done_world, done)


def test_a_grammar_that_ends_with_an_ordinary_token_keeps_it() -> None:
    done = generated(says("A", [token("B")], stop_token_id=-1)).one(wire.Done)
    assert done.value == "AB"
    done = generated(says("A", stop_token_id=token("B"))).one(wire.Done)
    assert (done.value, done.finish_reason, done.stop_reason) == ("AB", "stop", None)


def test_ignored_end_of_sequence_is_part_of_the_output() -> None:
    done = generated(says("A", [EOS], "B", reason="length"), ignore_eos=True).one(wire.Done)
    assert done.token_ids == (*encode("A"), EOS, *encode("B"))
    assert done.value == "AB"
    shown = generated(says("A", [EOS], "B", reason="length"), ignore_eos=True, skip_special_tokens=False).one(wire.Done)
    assert shown.value == "A<|end|>B"


def check_deltas(world: World, done: wire.Done) -> None:
    deltas = world.of(wire.Delta)
    assert "".join(delta.text for delta in deltas) == done.value
    streamed = tuple(i for delta in deltas for i in delta.token_ids)
    assert streamed == done.token_ids
    assert tuple(entry for delta in deltas for entry in delta.logprobs) == done.logprobs


@given(
    output=st.text(alphabet="ABCDEFX\nZé\N{SLICE OF PIZZA}", min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=12),
    stop=st.sampled_from(["X", "\n", "DEF", "é", "CX", "none"]),
    include=st.booleans(),
)
def test_text_ids_and_logprobs_agree_wherever_a_stop_cuts(output: str, sizes: list[int], stop: str, include: bool) -> None:
    ids = encode(output)
    raw, pieces, at = output.encode(), [], 0
    for size in sizes * len(ids):
        if at < len(ids):
            pieces.append(ids[at : at + size])
            at += size
    at = raw.find(stop.encode())
    if at >= 0:  # the runtime stops after the token in which the stop string is complete
        end, count = 0, 0
        while end < at + len(stop.encode()):
            end += len(tokenizer().vocabulary[ids[count]])
            count += 1
        pieces = [ids[:count]]
        script = says(*pieces, stop_token_id=-1, stop=stop.encode(), cut_bytes=end - at)
    else:
        script = says(*pieces)
    world = generated(script, stop=(stop,), include_stop=include, logprobs=1)
    done = world.one(wire.Done)
    expected = output if at < 0 else output[: output.index(stop) + (len(stop) if include else 0)]
    assert done.value == expected
    assert b"".join(tokenizer().vocabulary[i] for i in done.token_ids).decode() == expected
    assert [entry.token_id for entry in done.logprobs] == list(done.token_ids)
    check_deltas(world, done)


# ---- log-probabilities of the prompt --------------------------------------------------------------------------------


def test_prompt_logprobs_have_one_entry_a_token_and_the_first_has_none() -> None:
    def script(request: rt.Generate, prompt: list[int]) -> list[rt.FromRuntime]:
        entries = tuple(rt.TokenLogprob(i, -2.0, 3, ((7, -0.1),)) for i in prompt[1:])
        usage = rt.Usage(prompt_tokens=len(prompt), cached_tokens=0, output_tokens=0)
        return [
            rt.PromptLogprobs(request_id=request.request_id, entries=entries),
            rt.Finished(request_id=request.request_id, reason="length", usage=usage),
        ]

    done = generated(script, max_tokens=0, prompt_logprobs=1).one(wire.Done)
    assert done.prompt_token_ids == encode("hello")
    world = opened()
    world.runtime.scripts.append(script)
    done = world.send(append(0, "helloAB"), gen(1, max_tokens=0, prompt_logprobs=1)).one(wire.Done)
    assert [entry.logprob for entry in done.prompt_logprobs] == [None, -2.0]
    assert [entry.token for entry in done.prompt_logprobs] == ["hello", "AB"]
    assert done.prompt_logprobs[1].top[0].token_id == 7
    assert (done.value, done.finish_reason, done.token_ids) == ("", "length", ())


# ---- deltas ---------------------------------------------------------------------------------------------------------


def test_without_credits_deltas_coalesce_and_nothing_is_lost() -> None:
    world = opened(credits=2)
    world.runtime.hold = True
    world.send(append(0, "hello"), gen(1, stream=True))
    request_id = world.sent(rt.Generate)[0].request_id
    for piece in "abcdef":
        world.core.on_runtime(rt.Tokens(request_id=request_id, token_ids=encode(piece)))
        world.flush()
    assert [delta.text for delta in world.of(wire.Delta)] == ["a", "b"]
    world.send(wire.Credit(program=1, amount=1))
    assert [delta.text for delta in world.of(wire.Delta)] == ["a", "b", "cdef"]
    world.send(wire.Credit(program=1, amount=1))
    world.core.on_runtime(rt.Tokens(request_id=request_id, token_ids=encode("g")))
    usage = rt.Usage(prompt_tokens=1, cached_tokens=0, output_tokens=7)
    world.core.on_runtime(rt.Finished(request_id=request_id, reason="length", usage=usage))
    world.flush()
    done = world.one(wire.Done)
    assert done.value == "abcdefg"
    check_deltas(world, done)


def test_the_first_delta_tells_what_the_prompt_cost() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "hello"), gen(1, stream=True))
    request_id = world.sent(rt.Generate)[0].request_id
    for cached, piece in zip((3, -1), ("ab", "c"), strict=True):
        world.core.on_runtime(rt.Tokens(request_id=request_id, token_ids=encode(piece), cached_tokens=cached))
        world.flush()
    told = [delta.usage for delta in world.of(wire.Delta)]
    assert told == [wire.Usage(prompt_tokens=len(encode("hello")), cached_tokens=3, output_tokens=len(encode("ab"))), None]


def test_without_any_credit_everything_comes_with_done() -> None:
    world = generated(says("AB", "C"), credits=0)
    assert not world.of(wire.Delta)
    done = world.one(wire.Done)
    assert (done.value, done.token_ids) == ("ABC", (*encode("AB"), *encode("C")))


def test_a_blocked_client_gets_one_delta_afterwards() -> None:
    world = opened()
    world.runtime.hold = True
    world.send(append(0, "hello"), gen(1, stream=True))
    request_id = world.sent(rt.Generate)[0].request_id
    world.blocked.add(b"c")
    for piece in "abc":
        world.core.on_runtime(rt.Tokens(request_id=request_id, token_ids=encode(piece)))
        assert world.flush() == []
    world.blocked.clear()
    assert [event.text for event in world.flush() if isinstance(event, wire.Delta)] == ["abc"]


def test_credit_must_be_positive() -> None:
    world = opened().send(wire.Credit(program=1, amount=0))
    assert world.one(wire.Failed).param == "amount"
    assert World().send(wire.Open(program=1, credits=-1)).one(wire.Refused).status == 400


def test_without_stream_there_are_no_deltas() -> None:
    world = opened().send(append(0, "hello"), gen(1))
    assert not world.of(wire.Delta)
    assert world.one(wire.Done).value == "ok"


# ---- grammars -------------------------------------------------------------------------------------------------------

SCHEMA = wire.Constraint(kind="json_schema", source='{"type": "string"}')


def test_a_bad_schema_fails_before_the_runtime_hears_of_it() -> None:
    world = opened().send(append(0, "hi"), gen(1, constraint=wire.Constraint(kind="json_schema", source="bad")))
    failed = world.one(wire.Failed)
    assert (failed.status, failed.message) == (400, "the schema is bad at #/x")
    assert not world.sent(rt.Generate)
    assert world.core.services.admission.num_queued == 0


def test_a_grammar_is_compiled_once_and_its_payload_sent_once() -> None:
    world = opened().send(append(0, "hi"), wire.Fork(program=1, op=1, branch=0, first=1, count=3))
    world.send(*(gen(2 + b, branch=b, constraint=SCHEMA) for b in range(4)))
    assert len(world.compiler.submitted) == 1
    grammars = [m.grammar for m in world.sent(rt.Generate)]
    assert [bool(grammar and grammar.payload) for grammar in grammars] == [True, False, False, False]
    assert len(world.of(wire.Done)) == 4


def test_a_compiler_that_is_away_is_no_fault_of_the_constraint() -> None:
    full = wire.Constraint(kind="regex", source="full")
    world = opened().send(append(0, "hi"), gen(1, constraint=full))
    failed = world.one(wire.Failed)
    assert (failed.status, failed.code, failed.param, failed.retryable) == (503, "grammar_unavailable", "", True)
    world.send(wire.Rollback(program=1, op=2, branch=0, to_op=1), gen(3, constraint=full))
    assert len(world.compiler.submitted) == 2, "it is not remembered"


def test_top_p_0_is_the_best_token_alone() -> None:
    world = opened().send(append(0, "hi"), gen(1, temperature=1.5, top_p=0.0), gen(2, temperature=1.5, top_p=0.1))
    sent = [(m.sampling.temperature, m.sampling.top_p) for m in world.sent(rt.Generate)]
    assert sent == [(0.0, 1.0), (1.5, 0.1)]


def test_the_runtime_may_ask_for_a_grammar_again() -> None:
    world = opened().send(append(0, "hi"), gen(1, constraint=SCHEMA))
    world.runtime.known_grammars.clear()
    world.send(gen(2, constraint=SCHEMA))
    assert [bool(m.grammar and m.grammar.payload) for m in world.sent(rt.Generate)] == [True, False, True]
    assert len(world.of(wire.Done)) == 2


def test_a_generation_can_be_cancelled_while_its_grammar_compiles() -> None:
    world = opened()
    world.compiler.hold = True
    world.send(append(0, "hi"), gen(1, constraint=SCHEMA), wire.Cancel(program=1, branches=(0,)))
    assert world.one(wire.Failed).code == "cancelled"
    world.compiler.hold = False
    world.settle()
    assert not world.sent(rt.Generate)
