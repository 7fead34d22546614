"""The sampler against a plain, sorting oracle in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime.protocol import Sampling
from radixserve_runtime.sampling.draws import uniform
from radixserve_runtime.sampling.filters import Filters, apply_filters
from radixserve_runtime.sampling.sampler import SampledToken, Sampler, SamplingFailure
from radixserve_runtime.sampling.state import RowState


def row(*, prompt=(), output=(), eos=(), **sampling) -> RowState:
    sampling.setdefault("max_tokens", 100)
    sampling.setdefault("seed", 0)
    return RowState(Sampling(**sampling), prompt_ids=prompt, output_ids=output, eos_token_ids=eos)


def mask_of(vocab_size: int, allowed) -> torch.Tensor:
    bits = np.zeros((vocab_size + 31) // 32 * 32, dtype=np.uint8)
    bits[list(allowed)] = 1
    return torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32).copy())


def tokens(outcomes) -> list[int]:
    assert all(isinstance(outcome, SampledToken) for outcome in outcomes), outcomes
    return [outcome.token_id for outcome in outcomes]


def random_logits(num_rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def oracle_probabilities(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """Sort everything, filter, renormalise. Equal logits stay together."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    probabilities = np.exp(scaled - scaled.max())
    probabilities[probabilities < min_p * probabilities.max()] = 0.0
    if 0 < top_k < len(scaled):
        kth = np.sort(scaled)[-top_k]
        probabilities[scaled < kth] = 0.0
    probabilities /= probabilities.sum()
    if top_p < 1.0:
        order = np.sort(np.unique(scaled[probabilities > 0]))[::-1]
        for bound in order:
            if probabilities[scaled >= bound].sum() >= top_p:
                break
        probabilities[scaled < bound] = 0.0
    return probabilities / probabilities.sum()


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocab_size=st.sampled_from([5, 33, 256, 700, 5000]),
    scale=st.sampled_from([0.0, 0.05, 1.0, 4.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 600, 4000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.001, 0.1, 1.0]),
    rounded=st.booleans(),
)
def test_filters_keep_what_sorting_would_keep(seed, vocab_size, scale, top_k, top_p, min_p, rounded):
    logits = random_logits(1, vocab_size, seed, scale)
    if rounded:  # many equal logits
        logits = (logits * 2).round() / 2
    setting = Sampling(max_tokens=1, seed=0, top_k=top_k, top_p=top_p, min_p=min_p)
    mass = torch.exp(logits - logits.max())
    apply_filters(mass, Filters.of([setting], vocab_size))
    found = mass[0].double().numpy()
    kept = found > 0
    wanted = oracle_probabilities(logits[0], top_k=top_k, top_p=top_p, min_p=min_p)
    if top_p < 1.0 and (kept != (wanted > 0)).any():
        # Only a bound that rounding decides may differ: the kept mass is then at top_p within that rounding.
        whole = oracle_probabilities(logits[0], top_k=top_k, min_p=min_p)
        smallest = whole[kept & (whole == whole[kept].min())].sum()
        assert whole[kept].sum() >= top_p - 1e-6
        assert whole[kept].sum() - smallest <= top_p + 1e-6
        return
    assert (kept == (wanted > 0)).all()
    np.testing.assert_allclose(found / found.sum(), wanted, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    ],
)
def test_draws_follow_the_distribution(setting):
    vocab_size, num_draws = 50, 20_000
    logits = random_logits(1, vocab_size, seed=3, scale=1.5)
    sampler = Sampler(vocab_size)
    wanted = oracle_probabilities(logits[0], **setting)
    counts = np.zeros(vocab_size)
    for start in range(0, num_draws, 1000):
        rows = [row(seed=seed, **setting) for seed in range(start, start + 1000)]
        for token_id in tokens(sampler.sample(logits.expand(1000, -1), rows)):
            counts[token_id] += 1
    assert not counts[wanted == 0].any()
    likely = wanted * num_draws >= 5
    expected = wanted[likely] * num_draws
    chi_square = ((counts[likely] - expected) ** 2 / expected).sum()
    freedom = likely.sum() - 1
    # Mean `freedom`, variance 2 * `freedom`; the seeds are fixed, so this never flickers.
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_positions_of_one_request_are_independent_draws():
    points = [uniform(seed=7, position=position) for position in range(10_000)]
    assert all(0.0 <= point < 1.0 for point in points)
    assert abs(np.mean(points) - 0.5) < 0.01
    assert abs(np.corrcoef(points[:-1], points[1:])[0, 1]) < 0.03
    # A neighbouring seed isn't the same stream moved by one.
    other = {uniform(seed=8, position=position) for position in range(1000)}
    assert not other & set(points[:1002])


def test_largest_seed():
    assert 0.0 <= uniform(seed=2**64 - 1, position=10**9) < 1.0


def mixed_rows(index: int) -> RowState:
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 40},
        {"temperature": 1.5},
        {"temperature": 1.0, "min_p": 0.1, "repetition_penalty": 1.2},
        {"temperature": 0.0, "frequency_penalty": 0.5, "logprobs": 2},
        {"temperature": 2.0, "top_p": 0.999},
        {"temperature": 1.0, "top_k": 2000, "logit_bias": {5: 3.0}},
    ]
    return row(seed=index * 7919, prompt=[1, 2, 3], output=[4, 5, 4], **kinds[index % len(kinds)])


def test_a_row_does_not_depend_on_its_batch():
    vocab_size = 3001
    logits = random_logits(24, vocab_size, seed=5)
    sampler = Sampler(vocab_size)
    together = sampler.sample(logits, [mixed_rows(index) for index in range(24)])
    for index in range(24):
        assert sampler.sample(logits[index : index + 1], [mixed_rows(index)]) == [together[index]]
    backwards = sampler.sample(logits.flip(0), [mixed_rows(index) for index in reversed(range(24))])
    assert backwards == together[::-1]


def test_logits_are_left_as_they_are():
    logits = random_logits(8, 300)
    before = logits.clone()
    rows = [mixed_rows(index) for index in range(8)]
    Sampler(300).sample(logits, rows, [mask_of(300, range(100))] * 8)
    assert torch.equal(logits, before)


def test_greedy_takes_the_lowest_id_of_equals():
    logits = torch.zeros(2, 64)
    logits[0, [9, 30, 60]] = 5.0
    assert tokens(Sampler(64).sample(logits, [row(temperature=0.0), row(temperature=0.0)])) == [9, 0]


def test_tiny_temperatures_are_greedy_and_do_not_overflow():
    logits = random_logits(1, 100)
    best = int(logits.argmax())
    for temperature in (1e-300, 1e-30, 1e-6, 1e-4):
        assert tokens(Sampler(100).sample(logits, [row(temperature=temperature)])) == [best]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_with_bad_logits_fails_alone(bad):
    vocab_size = 100
    logits = random_logits(4, vocab_size)
    rows = [row(temperature=0.0), row(temperature=0.0), row(seed=3), row(seed=4, top_p=0.5)]
    good = Sampler(vocab_size).sample(logits, rows)
    for broken in range(4):
        spoiled = logits.clone()
        spoiled[broken, 17] = bad
        outcomes = Sampler(vocab_size).sample(spoiled, rows)
        assert isinstance(outcomes[broken], SamplingFailure)
        assert "finite" in outcomes[broken].message
        assert [o for i, o in enumerate(outcomes) if i != broken] == [o for i, o in enumerate(good) if i != broken]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5, "top_p": 0.5, "min_p": 0.1}])
def test_a_row_without_any_allowed_token_fails_alone(temperature, filters):
    rows = [row(temperature=temperature, **filters) for _ in range(3)]
    logits = random_logits(3, 70)
    alone = Sampler(70).sample(logits, rows)
    outcomes = Sampler(70).sample(logits, rows, [None, mask_of(70, []), None])
    assert isinstance(outcomes[1], SamplingFailure)
    assert (outcomes[0], outcomes[2]) == (alone[0], alone[2])


def test_a_bias_that_is_not_a_number_fails_its_row_alone():
    rows = [row(temperature=1.0, logit_bias={3: math.nan}), row(temperature=1.0), row(temperature=0.0, logit_bias={3: math.inf})]
    outcomes = Sampler(70).sample(random_logits(3, 70), rows)
    assert [type(outcome) for outcome in outcomes] == [SamplingFailure, SampledToken, SamplingFailure]


def test_masks_follow_the_request_not_the_slot():
    vocab_size = 1000
    logits = random_logits(9, vocab_size)
    sampler = Sampler(vocab_size)
    rows = [row(temperature=0.0 if index % 2 else 1.0, seed=index) for index in range(9)]
    masks = [mask_of(vocab_size, range(index * 100, index * 100 + 40)) if index % 2 else None for index in range(9)]
    alone = [sampler.sample(logits[i : i + 1], [rows[i]], [masks[i]])[0] for i in range(9)]
    for order in ([8, 7, 6, 5, 4, 3, 2, 1, 0], [1, 4, 2, 8], [3, 0, 5]):
        found = sampler.sample(logits[order], [rows[i] for i in order], [masks[i] for i in order])
        assert found == [alone[i] for i in order]
    for index in range(1, 9, 2):
        assert index * 100 <= alone[index].token_id < index * 100 + 40


def test_penalties_and_bias():
    logits = torch.zeros(1, 10)
    logits[0] = torch.tensor([0.0, 2.0, -2.0, 1.0, 5.0, 0.5, 0.5, 0.5, 0.5, 0.5])
    cases = [
        (row(temperature=0.0), 4),
        (row(temperature=0.0, prompt=[4], repetition_penalty=4.0), 1),  # 5 / 4 = 1.25 < 2
        (row(temperature=0.0, output=[4], repetition_penalty=4.0), 1),
        (row(temperature=0.0, prompt=[4], presence_penalty=2.0, frequency_penalty=2.0), 4),  # the prompt does not count
        (row(temperature=0.0, output=[4], presence_penalty=2.0), 4),
        (row(temperature=0.0, output=[4], presence_penalty=2.0, frequency_penalty=1.5), 1),
        (row(temperature=0.0, output=[4, 4], frequency_penalty=1.6), 1),
        (row(temperature=0.0, logit_bias={4: -100.0, 3: 1.5}), 3),
        (row(temperature=0.0, logit_bias={4: -100.0, 10: 100.0, -1: 100.0}), 1),  # ids outside are ignored
    ]
    for state, wanted in cases:
        assert tokens(Sampler(10).sample(logits, [state])) == [wanted], state.sampling


@settings(max_examples=50, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 19), max_size=30),
    output=st.lists(st.integers(0, 19), max_size=200),
    repetition=st.sampled_from([1.0, 0.7, 1.5]),
    presence=st.sampled_from([0.0, -0.5, 1.0]),
    frequency=st.sampled_from([0.0, -0.1, 0.3]),
)
def test_penalties_against_counting(prompt, output, repetition, presence, frequency):
    from radixserve_runtime.sampling.edits import edit_rows

    logits = random_logits(1, 20)
    wanted = logits[0].clone()
    for token_id in range(20):
        if token_id in prompt or token_id in output:
            wanted[token_id] = wanted[token_id] / repetition if wanted[token_id] > 0 else wanted[token_id] * repetition
        count = output.count(token_id)
        wanted[token_id] -= frequency * count + presence * (count > 0)
    state = row(
        prompt=prompt, output=output, repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    edit_rows(logits, [state], [None])
    torch.testing.assert_close(logits[0], wanted)


def test_min_tokens_rules_out_every_end_until_it_is_reached():
    logits = torch.zeros(1, 10)
    logits[0, 2], logits[0, 7], logits[0, 5] = 9.0, 8.0, 7.0
    state = row(temperature=0.0, min_tokens=2, stop_token_ids=(7,), eos=[2])
    drawn = []
    for _ in range(3):
        [token_id] = tokens(Sampler(10).sample(logits, [state]))
        drawn.append(token_id)
        state.append(token_id)
    assert drawn == [5, 5, 2]


def test_min_tokens_gives_way_to_a_complete_grammar():
    logits = random_logits(1, 10)
    state = row(temperature=0.0, min_tokens=5, eos=[2])
    assert tokens(Sampler(10).sample(logits, [state], [mask_of(10, [2])])) == [2]
    assert tokens(Sampler(10).sample(logits, [state], [mask_of(10, [2, 6])])) == [6]


def test_end_of_sequence_on_the_sign_bit_of_a_mask_word():
    logits = random_logits(1, 64)
    state = row(temperature=0.0, min_tokens=5, eos=[31, 63])
    assert tokens(Sampler(64).sample(logits, [state], [mask_of(64, [31, 63, 40])])) == [40]
    assert tokens(Sampler(64).sample(logits, [state], [mask_of(64, [63])])) == [63]


def test_ignored_end_of_sequence_is_a_token_like_any_other():
    logits = torch.zeros(1, 10)
    logits[0, 2] = 9.0
    assert tokens(Sampler(10).sample(logits, [row(temperature=0.0, min_tokens=2, ignore_eos=True, eos=[2])])) == [2]


def test_logprobs_are_of_the_raw_logits():
    logits = random_logits(2, 200)
    wanted = torch.log_softmax(logits, dim=1)
    rows = [row(temperature=0.3, seed=5, logprobs=3, logit_bias={9: 50.0}), row(temperature=0.0)]
    biased, plain = Sampler(200).sample(logits, rows)
    assert biased.token_id == 9
    assert biased.logprob.logprob == pytest.approx(float(wanted[0, 9]), abs=1e-5)
    assert biased.logprob.rank == int((logits[0] > logits[0, 9]).sum())
    assert [token_id for token_id, _ in biased.logprob.top] == logits[0].topk(3).indices.tolist()
    assert plain.logprob is None


def test_wrong_shapes_are_named():
    sampler = Sampler(10)
    with pytest.raises(ValueError, match="shape"):
        sampler.sample(torch.zeros(2, 10), [row()])
    with pytest.raises(ValueError, match="masks"):
        sampler.sample(torch.zeros(1, 10), [row()], [None, None])
    with pytest.raises(ValueError, match="masks of shape"):
        Sampler(100).sample(torch.zeros(1, 100), [row()], [torch.zeros(3, dtype=torch.int32)])
    assert sampler.sample(torch.zeros(0, 10), []) == []
