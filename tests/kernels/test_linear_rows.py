"""Numbers of rows that oneDNN is given: each new one costs a compiled kernel."""

from __future__ import annotations

import pytest
import torch

from radixserve_kernels.cpu import linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prompts_of_all_lengths_share_few_kernels(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = linear.pack_linear(torch.randn(24, 16, dtype=dtype), None)
    sizes: set[int] = set()
    made_up = linear._made_up  # pyright: ignore[reportPrivateUsage]

    def counting(x: torch.Tensor) -> torch.Tensor:
        sizes.add(made_up(x).shape[0])
        return made_up(x)

    monkeypatch.setattr(linear, "_made_up", counting)
    x = torch.randn(513, 16, dtype=dtype)
    whole = layer(x)
    for rows in range(1, 513):
        result = layer(x[:rows])
        assert torch.equal(result, whole[:rows])
    assert len(sizes) <= 32
