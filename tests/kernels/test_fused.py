"""Norms, rotary embedding and SiLU-multiply: every backend against the reference."""

from __future__ import annotations

import pytest
import torch

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def close(actual, expected):
    assert actual.dtype is expected.dtype
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.fixture
def pair(kind, reference, batches):
    spec = batches.spec(1, (9, 3), 64)
    return kind.make(spec), reference(spec)


def table(positions, dim):
    angles = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    return torch.cat((angles.cos(), angles.sin()), dim=1).contiguous()


@pytest.mark.parametrize("rows", [1, 5, 130])
@pytest.mark.parametrize("width", [576, 37])
def test_rms_norm(pair, kind, rows, width):
    backend, reference = pair
    x = (torch.randn(rows, width) * 3).to(kind.dtype)
    for weight in (torch.randn(width).to(kind.dtype), torch.randn(width)):
        close(backend.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


def test_rms_norm_of_strided_heads(pair, kind):
    backend, reference = pair
    fused = torch.randn(7, 15 * 64).to(kind.dtype)
    q = fused[:, 64 : 64 + 9 * 64].unflatten(1, (9, 64))
    weight = torch.randn(64).to(kind.dtype)
    out = backend.rms_norm(q, weight, 1e-6)
    assert out.shape == q.shape
    close(out, reference.rms_norm(q, weight, 1e-6))


@pytest.mark.parametrize("rows", [1, 90])
def test_add_rms_norm(pair, kind, rows):
    backend, reference = pair
    x, residual, weight = (torch.randn(n, 576).to(kind.dtype) for n in (rows, rows, 1))
    expected = reference.add_rms_norm(x, residual, weight[0], 1e-5)
    normed, total = backend.add_rms_norm(x.clone(), residual.clone(), weight[0], 1e-5)
    close(normed, expected[0])
    assert torch.equal(total, expected[1])


@pytest.mark.parametrize("dim", [64, 80])
def test_rotary_on_views_of_one_projection(pair, kind, dim):
    backend, reference = pair
    backend.spec = reference.spec.__class__(1, 4, 2, dim, 0.1)
    fused = torch.randn(33, 8 * dim).to(kind.dtype)
    expected = fused.clone()
    positions = torch.randint(0, 500, (33,), dtype=torch.int32)

    def views(x):
        return x[:, : 4 * dim].unflatten(1, (4, dim)), x[:, 4 * dim : 6 * dim].unflatten(1, (2, dim))

    reference.rotary(*views(expected), table(500, dim), positions)
    backend.rotary(*views(fused), table(500, dim), positions)
    close(fused, expected)
    assert torch.equal(fused[:, 6 * dim :], expected[:, 6 * dim :]), "v must be left alone"


def test_rotary_is_the_half_split_form(reference, batches):
    q, k = torch.randn(1, 1, 8), torch.randn(1, 1, 8)
    before = q.clone()
    cos_sin = table(10, 8)
    reference(batches.spec(1, (1, 1), 8)).rotary(q, k, cos_sin, torch.tensor([3], dtype=torch.int32))
    for i in range(4):
        c, s = float(cos_sin[3, i]), float(cos_sin[3, 4 + i])
        a, b = float(before[0, 0, i]), float(before[0, 0, i + 4])
        assert float(q[0, 0, i]) == pytest.approx(a * c - b * s, abs=1e-6)
        assert float(q[0, 0, i + 4]) == pytest.approx(b * c + a * s, abs=1e-6)


def test_rotary_refuses_positions_outside_the_table(make_cpu, batches):
    backend = make_cpu(batches.spec(1, (2, 1), 16))
    q, k = torch.randn(2, 2, 16), torch.randn(2, 1, 16)
    before = q.clone()
    with pytest.raises(IndexError, match="rotary table of 10"):
        backend.rotary(q, k, table(10, 16), torch.tensor([1, 10], dtype=torch.int32))
    assert torch.equal(q, before)


@pytest.mark.parametrize(("rows", "width"), [(1, 1536), (70, 1536), (3, 21)])
def test_silu_mul(pair, kind, rows, width):
    backend, reference = pair
    x = (torch.randn(rows, 2 * width) * 10).to(kind.dtype)
    close(backend.silu_mul(x), reference.silu_mul(x))


def test_silu_mul_far_out(make_cpu, batches):
    x = torch.tensor([[-1e30, -200.0, -100.0, 0.0, 100.0, 1e30, float("nan"), -50.0] * 4 + [1.0] * 32])
    out = make_cpu(batches.spec()).silu_mul(x)[0, :8]
    torch.testing.assert_close(out[[1, 2, 3, 4, 5, 7]], torch.tensor([0.0, 0.0, 0.0, 100.0, 1e30, 0.0]))
    assert out[6].isnan()
    assert abs(float(out[0])) < 1e-5


def test_linear_is_the_product(kind, reference, batches):
    backend = kind.make(batches.spec())
    weight, bias, x = (torch.randn(*shape).mul_(0.1).to(kind.dtype) for shape in ((48, 32), (48,), (5, 32)))
    for b in (bias, None):
        close(backend.pack_linear(weight.clone(), b)(x), reference(batches.spec()).pack_linear(weight, b)(x))
