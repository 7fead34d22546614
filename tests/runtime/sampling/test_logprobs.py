"""Log-probabilities against log_softmax and a sort."""

from __future__ import annotations

import pytest
import torch

from radixserve_runtime.sampling.logprobs import chosen_logprobs, token_logprobs


def test_values_ranks_and_alternatives():
    logits = torch.randn(150, 97, generator=torch.Generator().manual_seed(1)) * 2
    chosen = [(7 * index) % 97 for index in range(150)]
    wanted = torch.log_softmax(logits, dim=1)
    entries = token_logprobs(logits, chosen, 5)
    assert len(entries) == 150
    for index, entry in enumerate(entries):
        assert entry.token_id == chosen[index]
        assert entry.logprob == pytest.approx(float(wanted[index, chosen[index]]), abs=1e-5)
        order = logits[index].argsort(descending=True).tolist()
        assert entry.rank == order.index(chosen[index])
        assert [token_id for token_id, _ in entry.top] == order[:5]
        assert [value for _, value in entry.top] == pytest.approx(
            wanted[index].sort(descending=True).values[:5].tolist(), abs=1e-5
        )
    assert chosen_logprobs(logits, chosen) == pytest.approx([entry.logprob for entry in entries])


def test_counts_of_alternatives_by_row():
    logits = torch.randn(3, 20)
    entries = token_logprobs(logits, [0, 1, 2], [0, 2, 50])
    assert [len(entry.top) for entry in entries] == [0, 2, 20]


def test_equal_alternatives_come_by_id():
    entries = token_logprobs(torch.zeros(1, 4), [2], 4)
    assert [token_id for token_id, _ in entries[0].top] == [0, 1, 2, 3]
    assert entries[0].rank == 0


def test_chunks_do_not_change_values():
    logits = torch.randn(200, 33)
    whole = token_logprobs(logits, [3] * 200, 2)
    for index in (0, 63, 64, 128, 199):
        assert token_logprobs(logits[index : index + 1], [3], 2) == [whole[index]]


def test_bad_arguments():
    with pytest.raises(ValueError, match="rows"):
        token_logprobs(torch.zeros(2, 5), [1], 0)
    with pytest.raises(ValueError, match="outside"):
        token_logprobs(torch.zeros(1, 5), [5], 0)
    with pytest.raises(ValueError, match="outside"):
        token_logprobs(torch.zeros(1, 5), [-1], 0)
    assert token_logprobs(torch.zeros(0, 5), [], 3) == []
