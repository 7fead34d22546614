"""Cascade: passes over pages that sequences have in common. Never another bit than without, and the reference's result."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve_kernels.cpu.processor import supported_isas

ISAS = [isa for isa in ("avx2", "avx512", "avx512_bf16") if isa in supported_isas()]
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def tree_batch(batches, branches, page_size):
    """Sequences of a tree: each is (parent or None, tokens taken from the parent, tokens in all, new tokens).

    Whole pages are shared; of a page that is shared in part the child has its own.
    """
    tables, next_page = [], 0
    for parent, taken, total, _ in branches:
        table = [] if parent is None else tables[parent][: taken // page_size]
        while len(table) * page_size < total:
            table.append(next_page)
            next_page += 1
        tables.append(table)
    return batches.with_pages([(new, total) for *_, total, new in branches], tables, page_size), next_page


def outputs(backend, batches, batch, num_pages, spec, dtype, seed=0):
    batches.fill_pool(backend, num_pages, batch.page_size_tokens, dtype)
    backend.prepare(batch)
    return backend.attend(0, *batches.random_qkv(batch.slots.shape[0], spec, dtype, seed))


TREES = {
    "a long system prompt": [(None, 0, 1030, 1), *[(0, 1024, 1030 + 9 * i, 1) for i in range(1, 20)]],
    "three levels that end within splits": [
        (None, 0, 900, 1),
        *[(0, 192, 500 + i, 1) for i in range(3)],
        *[(1, 384, 800 + i, 1) for i in range(4)],
        *[(0, 832, 900 + i, 2) for i in range(3)],
    ],
    "more rows than a tile holds": [(None, 0, 700, 1), *[(0, 640, 700 + i, 1) for i in range(1, 50)]],
    "some queries each, and a long prompt beside": [
        (None, 0, 600, 5),
        *[(0, 512, 560 + i, 1 + i) for i in range(12)],
        (0, 512, 900, 300),
    ],
    "the very same pages": [(None, 0, 400, 1), (0, 384, 400, 1), (0, 384, 400, 1)],
    "short prefixes": [(None, 0, 80, 1), *[(0, 64, 70 + i, 1) for i in range(8)]],
}


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sharing_changes_no_bit(make_cpu, reference, batches, name, isa, dtype):
    spec = batches.spec(1, (9, 3), 64)
    batch, num_pages = tree_batch(batches, TREES[name], 16)
    shared = outputs(make_cpu(spec, 2, isa), batches, batch, num_pages, spec, dtype)
    alone = outputs(make_cpu(spec, 2, isa, cascade=False), batches, batch, num_pages, spec, dtype)
    assert torch.equal(shared, alone)
    expected = outputs(reference(spec), batches, batch, num_pages, spec, dtype)
    tolerance = 3e-5 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(shared, expected, atol=tolerance, rtol=tolerance)


@st.composite
def trees(draw):
    branches = []
    for index in range(draw(st.integers(2, 12))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        taken = 0 if parent is None else draw(st.integers(0, branches[parent][2] - 1))
        new = draw(st.integers(1, 40))
        branches.append((parent, taken, taken + new + draw(st.sampled_from([0, 3, 64, 70, 256, 300])), new))
    return branches


@FEW
@given(
    branches=trees(),
    page_size=st.sampled_from([1, 5, 16, 64]),
    heads=st.sampled_from([(2, 2), (3, 1), (4, 2)]),
    window=st.sampled_from([0, 100, 400]),
    threads=st.integers(1, 3),
)
def test_any_tree(make_cpu, reference, batches, branches, page_size, heads, window, threads):
    spec = batches.spec(1, heads, 16, window)
    batch, num_pages = tree_batch(batches, branches, page_size)
    shared = outputs(make_cpu(spec, threads), batches, batch, num_pages, spec, torch.float32)
    alone = outputs(make_cpu(spec, 1, cascade=False), batches, batch, num_pages, spec, torch.float32)
    assert torch.equal(shared, alone)
    expected = outputs(reference(spec), batches, batch, num_pages, spec, torch.float32)
    torch.testing.assert_close(shared, expected, atol=3e-5, rtol=3e-5)


def test_a_plan_serves_every_layer(make_cpu, batches):
    spec = batches.spec(3, (9, 3), 64)
    batch, num_pages = tree_batch(batches, TREES["three levels that end within splits"], 16)
    backend, plain = make_cpu(spec, 2), make_cpu(spec, 2, cascade=False)
    for one in (backend, plain):
        batches.fill_pool(one, num_pages, 16, torch.float32)
    for step in range(2):
        backend.prepare(batch)
        plain.prepare(batch)
        for layer in range(3):
            qkv = batches.random_qkv(batch.slots.shape[0], spec, torch.float32, 10 * step + layer)
            assert torch.equal(backend.attend(layer, *qkv), plain.attend(layer, *qkv))


def test_shared_keys_are_read_once(make_cpu, batches):
    spec = batches.spec(1, (9, 3), 64)
    batch, num_pages = tree_batch(batches, TREES["a long system prompt"], 16)
    keys = []
    for cascade in (True, False):
        backend = make_cpu(spec, 2, cascade=cascade)
        backend.allocate_kv(num_pages, 16, torch.float32)
        backend.prepare(batch)
        keys.append(backend.planned_keys)
    lengths = batch.kv_len.tolist()
    assert keys == [3 * (1024 + sum(length - 1024 for length in lengths)), 3 * sum(lengths)]
