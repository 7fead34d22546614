"""Weights in 8 and 4 bits: how close the codes are, and linears of every instruction set against arithmetic in float64."""

from __future__ import annotations

import pytest
import torch

from radixserve_kernels.cpu.processor import supported_isas
from radixserve_kernels.quantized import GROUP, GroupSizeError, QuantizedWeight, quantize_4bit, quantize_8bit

ISAS = [isa for isa in ("avx2", "avx512", "avx512_bf16") if isa in supported_isas()]
QUANTIZERS = {8: quantize_8bit, 4: quantize_4bit}


def matrix(rows, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * torch.rand(rows, 1, generator=generator)


def oracle(x, weight, bias=None):
    """x in codes by row and group, times the weight, in float64."""
    groups = x.double().view(x.shape[0], -1, GROUP)
    largest = groups.abs().amax(dim=-1, keepdim=True)
    coded = (groups * (127 / largest.clamp(min=1e-300))).round() * largest / 127
    product = coded.flatten(1) @ weight.dequantize(torch.float64).T
    return product if bias is None else product + bias.double()


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_are_within_half_a_step(bits):
    weight = matrix(48, 96)
    weight[3, 32:64] = 0
    weight[4] = 0.25
    quantized = QUANTIZERS[bits](weight)
    assert quantized.num_bits == bits
    groups = weight.view(48, -1, GROUP)
    low, high = groups.aminmax(dim=-1)
    step = torch.maximum(-low, high) / 127 if bits == 8 else (high - low) / 15
    error = (quantized.dequantize().view_as(groups) - groups).abs().amax(dim=-1)
    # float16 scales and minima are off by 2^-11 themselves.
    assert (error <= 0.5 * step + groups.abs().amax(dim=-1) * 2**-10 + 1e-7).all()
    with pytest.raises(GroupSizeError, match="48 inputs"):
        QUANTIZERS[bits](torch.zeros(4, 48))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 32), (64, 96), (40, 576), (960, 64)])
def test_linear_equals_the_oracle(make_cpu, batches, bits, isa, outputs, inputs):
    weight, bias = QUANTIZERS[bits](matrix(outputs, inputs)), torch.randn(outputs)
    linear = make_cpu(batches.spec(), isa=isa).pack_quantized([weight], bias, torch.float32)
    for rows in (1, 2, 3, 5, 9, 130):
        x = matrix(rows, inputs, seed=rows)
        x[0, :GROUP] = 0
        expected = oracle(x, weight, bias)
        torch.testing.assert_close(linear(x).double(), expected, atol=1e-5, rtol=1e-5)
        narrow = linear(x.bfloat16())
        assert narrow.dtype is torch.bfloat16
        torch.testing.assert_close(narrow.double(), oracle(x.bfloat16(), weight, bias), atol=0.1, rtol=1e-2)


@pytest.mark.parametrize("bits", [8, 4])
def test_every_instruction_set_has_the_same_bits(make_cpu, batches, bits):
    weight, x = QUANTIZERS[bits](matrix(96, 128)), matrix(7, 128, seed=1)
    results = [make_cpu(batches.spec(), isa=isa).pack_quantized([weight], None, torch.float32)(x) for isa in ISAS]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_do_not_depend_on_their_number(make_cpu, batches, bits, dtype):
    weight, x = QUANTIZERS[bits](matrix(960, 64)), matrix(300, 64, seed=2).to(dtype)
    whole = make_cpu(batches.spec(), 1).pack_quantized([weight], None, dtype)(x)
    linear = make_cpu(batches.spec(), 3).pack_quantized([weight], None, dtype)
    for rows in (*range(1, 18), 127, 129):
        assert torch.equal(linear(x[:rows]), whole[:rows]), rows
        assert torch.equal(linear(x[300 - rows :]), whole[300 - rows :]), rows


def test_parts_of_different_kinds_stand_side_by_side(make_cpu, reference, batches):
    parts = [quantize_4bit(matrix(32, 64)), quantize_8bit(matrix(16, 64, 1)), quantize_4bit(matrix(24, 64, 2))]
    x, bias = matrix(5, 64, 3), torch.randn(72)
    out = make_cpu(batches.spec()).pack_quantized(parts, bias, torch.float32)(x)
    expected = torch.cat([oracle(x, part) for part in parts], dim=1) + bias
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    # Parts that are no whole panels are unpacked, as by a backend that has no kernels for codes.
    ragged = [parts[2], parts[1]]
    plain = reference(batches.spec()).pack_quantized(ragged, None, torch.float32)
    torch.testing.assert_close(
        make_cpu(batches.spec()).pack_quantized(ragged, None, torch.float32)(x), plain(x), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(plain(x), x @ torch.cat([part.dequantize() for part in ragged]).T)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_every_part_is_done_once_however_many_threads_claim_units(make_cpu, batches, threads):
    parts = [quantize_8bit(matrix(336, 64)), quantize_4bit(matrix(16, 64, 1)), quantize_8bit(matrix(1040, 64, 2))]
    x = matrix(140, 64, 3).bfloat16()
    alone = make_cpu(batches.spec(), 1).pack_quantized(parts, None, torch.bfloat16)
    linear = make_cpu(batches.spec(), threads).pack_quantized(parts, None, torch.bfloat16)
    for rows in (1, 4, 5, 16, 140):
        assert torch.equal(linear(x[:rows]), alone(x[:rows])), rows


def test_a_broken_row_stays_broken_and_alone(make_cpu, batches):
    linear = make_cpu(batches.spec()).pack_quantized([quantize_8bit(matrix(48, 64))], None, torch.float32)
    x = matrix(3, 64)
    x[1, 5] = float("nan")
    x[2, 40] = float("inf")
    out = linear(x)
    assert torch.isfinite(out[0]).all()
    assert not torch.isfinite(out[1]).any()
    assert not torch.isfinite(out[2]).any()


def test_layers_say_what_they_take(make_cpu, batches):
    backend = make_cpu(batches.spec())
    with pytest.raises(ValueError, match="bfloat16, not"):
        backend.pack_linear(matrix(16, 32).bfloat16(), None)(matrix(2, 32))
    coded = backend.pack_quantized([quantize_8bit(matrix(16, 32))], None, torch.float32)
    with pytest.raises(ValueError, match="or float32, not"):
        coded(matrix(2, 32).double())
    with pytest.raises(ValueError, match="32 inputs, not 64"):
        coded(matrix(2, 64))
    assert coded(matrix(2, 32)[:0]).shape == (0, 16)


def test_dequantize_is_scale_times_code_plus_minimum():
    codes = torch.arange(64, dtype=torch.uint8).view(2, 32) % 16
    weight = QuantizedWeight(codes, torch.full((2, 1), 0.5).half(), torch.full((2, 1), -3.0).half())
    assert torch.equal(weight.dequantize(), codes.float() * 0.5 - 3)
    assert torch.equal(weight.to("cpu").dequantize(), weight.dequantize())
