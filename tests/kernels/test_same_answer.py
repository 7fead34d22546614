"""A row depends on its own sequence alone: bit for bit the same in any company, chunking, page size and number of threads."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve_kernels.cpu.processor import supported_isas

ISAS = [isa for isa in ("avx2", "avx512", "avx512_bf16") if isa in supported_isas()]


def qkv_of(total, spec, dtype, batches):
    return batches.random_qkv(total, spec, dtype, seed=7)


def prefill(backend, batches, spec, dtype, total, chunks, page_size, company=()):
    """Rows of one sequence that goes through in `chunks`, each step beside `company`; returns [total, Hq, D]."""
    pages_each = -(-total // page_size)
    backend.allocate_kv(pages_each + sum(-(-t // page_size) for _, t in company), page_size, dtype)
    backend.kv_pool.normal_()
    q, k, v = qkv_of(total, spec, dtype, batches)
    outputs, done = [], 0
    for chunk in chunks:
        lengths = [*company, (chunk, done + chunk)]
        tables, next_page = [], 0
        for _, t in lengths:
            count = -(-t // page_size)
            tables.append(list(range(next_page, next_page + count)))
            next_page += count
        batch = batches.with_pages(lengths, tables, page_size)
        others = sum(new for new, _ in company)
        noise = batches.random_qkv(others, spec, dtype, seed=done)
        backend.prepare(batch)
        rows = slice(done, done + chunk)
        out = backend.attend(0, *(torch.cat((n, x[rows])) for n, x in zip(noise, (q, k, v), strict=True)))
        outputs.append(out[others:])
        done += chunk
    assert done == total
    return torch.cat(outputs)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 100])
def test_chunks_company_pages_and_threads_change_nothing(make_cpu, batches, isa, dtype, window):
    spec = batches.spec(1, (9, 3), 64, window)
    total = 700
    whole = prefill(make_cpu(spec, 1, isa), batches, spec, dtype, total, [total], 16)
    variants = {
        "chunks of 16": ([16] * 43 + [12], 16, (), 2),
        "one token each, at the end": ([600, *[1] * 100], 16, (), 2),
        "pages of 1": ([total], 1, (), 2),
        "pages of 5, ragged chunks": ([63, 65, 1, 127, 256, 188], 5, (), 3),
        "beside 15 others": ([256, 256, 188], 16, [(1, 30 + 17 * i) for i in range(15)], 2),
        "beside a long one, four threads": ([699, 1], 16, [(40, 1500)], 4),
    }
    for name, (chunks, page_size, company, threads) in variants.items():
        out = prefill(make_cpu(spec, threads, isa), batches, spec, dtype, total, chunks, page_size, company)
        assert torch.equal(out, whole), name


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(1, 299), max_size=6, unique=True), page_size=st.sampled_from([1, 7, 16]), threads=st.integers(1, 3)
)
def test_any_cuts(make_cpu, batches, cuts, page_size, threads):
    spec = batches.spec(1, (4, 1), 16)
    edges = [0, *sorted(cuts), 300]
    chunks = [b - a for a, b in pairwise(edges)]
    whole = prefill(make_cpu(spec, 1), batches, spec, torch.float32, 300, [300], 16)
    out = prefill(make_cpu(spec, threads), batches, spec, torch.float32, 300, chunks, page_size)
    assert torch.equal(out, whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (256, 128)])
def test_linear_rows_do_not_depend_on_their_number(make_cpu, batches, dtype, shape):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).mul_(0.05).to(dtype)
    bias = torch.randn(shape[0], generator=generator).to(dtype)
    linear = make_cpu(batches.spec()).pack_linear(weight, bias)
    x = torch.randn(512, shape[1], generator=generator).to(dtype)
    whole = linear(x)
    torch.testing.assert_close(whole.float(), x.float() @ weight.float().T + bias.float(), atol=2e-2, rtol=2e-2)
    for rows in [*range(1, 34), 63, 64, 65, 127, 200, 256, 511]:
        assert torch.equal(linear(x[:rows]), whole[:rows]), rows
        assert torch.equal(linear(x[512 - rows :]), whole[512 - rows :]), rows


def test_plain_float32_linear_is_as_steady(make_cpu, batches, monkeypatch):
    from radixserve_kernels.cpu import linear as module

    monkeypatch.setattr(module, "_reorder", lambda weight: None)
    weight = torch.randn(96, 64)
    linear = make_cpu(batches.spec()).pack_linear(weight, None)
    x = torch.randn(64, 64)
    whole = linear(x)
    for rows in range(1, 64):
        assert torch.equal(linear(x[:rows]), whole[:rows]), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_operators_do_not_depend_on_company(make_cpu, batches, dtype):
    backend = make_cpu(batches.spec())
    x, weight = torch.randn(200, 576).to(dtype), torch.randn(576).to(dtype)
    norm, gated = backend.rms_norm(x, weight, 1e-5), backend.silu_mul(x)
    for row in (0, 99, 199):
        assert torch.equal(backend.rms_norm(x[row : row + 1], weight, 1e-5)[0], norm[row])
        assert torch.equal(backend.silu_mul(x[row : row + 1])[0], gated[row])
