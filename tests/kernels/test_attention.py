"""Ragged paged attention: every backend against the reference, and the reference against dense attention written out."""

from __future__ import annotations

import math
import resource

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def run(backend, batches, batch, spec, dtype, *, num_pages, layer=0, seed=0):
    batches.fill_pool(backend, num_pages, batch.page_size_tokens, dtype)
    q, k, v = batches.random_qkv(batch.slots.shape[0], spec, dtype, seed)
    backend.prepare(batch)
    return backend.attend(layer, q, k, v)


def assert_same(backend, reference, kind, batches, batch, spec, num_pages, layer=0):
    out = run(backend, batches, batch, spec, kind.dtype, num_pages=num_pages, layer=layer)
    expected = run(reference, batches, batch, spec, kind.dtype, num_pages=num_pages, layer=layer)
    assert out.dtype is kind.dtype
    torch.testing.assert_close(out, expected, atol=kind.tolerance, rtol=kind.tolerance)
    assert torch.equal(backend.kv_pool, reference.kv_pool), "KV was written elsewhere, or other values"


def test_reference_is_dense_attention(reference, batches):
    spec = batches.spec(heads=(6, 2), head_dim=8, window=5)
    total, new = 23, 9
    batch = batches.ragged([(new, total)], page_size=4, num_pages=12)
    backend = reference(spec)
    batches.fill_pool(backend, 12, 4, torch.float32)
    q, k, v = batches.random_qkv(new, spec, torch.float32)
    backend.prepare(batch)
    out = backend.attend(0, q, k, v)
    pages = batch.page_indices.tolist()
    for row in range(new):
        position = total - new + row
        for head in range(6):
            scores, values = [], []
            for key in range(max(0, position - 4), position + 1):
                cache = backend.kv_pool[0, :, pages[key // 4], key % 4, head // 3]
                if key >= total - new:
                    assert torch.equal(cache[0], k[key - (total - new), head // 3])
                scores.append(float(q[row, head] @ cache[0]) * spec.scale)
                values.append(cache[1])
            weights = [math.exp(s - max(scores)) for s in scores]
            dense = sum(w / sum(weights) * value for w, value in zip(weights, values, strict=True))
            torch.testing.assert_close(out[row, head], dense, atol=1e-5, rtol=1e-5)


sequences = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 90)).map(lambda pair: (pair[0], pair[0] + pair[1])), min_size=1, max_size=5
)


@FEW
@given(
    lengths=sequences,
    page_size=st.sampled_from([1, 3, 16]),
    heads=st.sampled_from([(2, 2), (3, 1), (4, 2), (8, 2)]),
    head_dim=st.sampled_from([16, 64, 80]),
    window=st.sampled_from([0, 1, 7, 64]),
    spare=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_any_mix_equals_the_reference(kind, reference, batches, lengths, page_size, heads, head_dim, window, spare, seed):
    spec = batches.spec(2, heads, head_dim, window)
    num_pages = sum(-(-total // page_size) + spare for _, total in lengths) + 3
    batch = batches.ragged(lengths, page_size, num_pages, seed, spare)
    assert_same(kind.make(spec), reference(spec), kind, batches, batch, spec, num_pages, layer=1)


@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("window", [0, 300])
def test_long_contexts_cross_splits(kind, reference, batches, head_dim, window):
    spec = batches.spec(1, (9, 3), head_dim, window)
    batch = batches.ragged([(1, 1100), (70, 600), (1, 257), (1, 1)], 16, 140)
    assert_same(kind.make(spec), reference(spec), kind, batches, batch, spec, 140)


def test_garbage_in_unused_memory_does_not_reach_the_result(kind, batches):
    spec = batches.spec(1, (4, 2), 32)
    backend = kind.make(spec)
    batch = batches.ragged([(3, 3), (1, 1)], 16, 6, spare_pages=1)
    q, k, v = batches.random_qkv(4, spec, kind.dtype)
    backend.allocate_kv(6, 16, kind.dtype)
    backend.kv_pool.fill_(float("nan"))
    backend.prepare(batch)
    assert torch.isfinite(backend.attend(0, q, k, v)).all()


def test_nan_stays_in_its_sequence(kind, batches):
    spec = batches.spec(1, (4, 2), 32)
    backend = kind.make(spec)
    batches.fill_pool(backend, 8, 16, kind.dtype)
    q, k, v = (x.clone() for x in batches.random_qkv(4, spec, kind.dtype))
    q[1] = float("nan")
    backend.prepare(batches.ragged([(1, 20), (1, 20), (2, 5)], 16, 8))
    out = backend.attend(0, q, k, v)
    assert out[1].isnan().all(), "a broken sequence must be seen"
    assert torch.isfinite(out[[0, 2, 3]]).all()


@pytest.mark.parametrize("page_size", [1, 16])
def test_copy_pages_in_order_in_every_layer(kind, batches, page_size):
    spec = batches.spec(3, (4, 2), 32)
    backend = kind.make(spec)
    batches.fill_pool(backend, 6, page_size, kind.dtype)
    expected = backend.kv_pool.clone()
    copies = [(0, 1, page_size), (1, 2, max(1, page_size // 2)), (3, 3, 1), (4, 5, 0)]
    for source, to, count in copies:
        expected[:, :, to, :count] = expected[:, :, source, :count]
    backend.copy_pages(copies)
    assert torch.equal(backend.kv_pool, expected)
    backend.copy_pages([])
    with pytest.raises(ValueError, match="can't copy"):
        backend.copy_pages([(0, 6, 1)])
    assert torch.equal(backend.kv_pool, expected)


def test_batches_that_contradict_themselves_are_refused(make_cpu, reference, batches):
    from dataclasses import replace

    good = batches.ragged([(2, 20), (1, 5)], 16, 8)
    bad = {
        "qo_indptr": batches.int32([0, 2, 4]),
        "kv_len": batches.int32([1, 5]),
        "page_indptr": batches.int32([0, 1, 3]),
        "page_indices": batches.int32([0, 8, 1]),
        "slots": batches.int32([0, 1, 128]),
        "page_size_tokens": 8,
        "positions": torch.zeros(3, dtype=torch.int64),
    }
    for make in (make_cpu, reference):
        backend = make(batches.spec(1, (4, 2), 32))
        backend.allocate_kv(8, 16, torch.float32)
        backend.prepare(good)
        for field, value in bad.items():
            with pytest.raises(ValueError):
                backend.prepare(replace(good, **{field: value}))


def test_the_pool_is_there_before_it_is_used(make_cpu, batches):
    """Memory that the kernel hands out at the first write stalls the step that writes: 120 MB at once in a model of 30 layers."""
    backend = make_cpu(batches.spec(4, (4, 2), 32))
    backend.allocate_kv(4096, 16, torch.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory = backend.kv_pool.transpose(3, 4).view(-1).numpy()
    memory[::1024] = 1.0
    assert memory.nbytes > 1 << 26
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 20


def test_shapes_are_checked(make_cpu, batches):
    spec = batches.spec(1, (4, 2), 32)
    backend = make_cpu(spec)
    backend.allocate_kv(8, 16, torch.float32)
    q, k, v = batches.random_qkv(2, spec, torch.float32)
    with pytest.raises(ValueError, match="prepared batch"):
        backend.attend(0, q, k, v)
    backend.prepare(batches.ragged([(2, 20)], 16, 8))
    with pytest.raises(ValueError, match="prepared batch"):
        backend.attend(0, q[:1], k[:1], v[:1])
    with pytest.raises(ValueError, match="share a dtype"):
        backend.attend(0, q, k.bfloat16(), v)
