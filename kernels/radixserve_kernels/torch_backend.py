"""The `torch` backend: PyTorch's own operators, for machines where no kernel can be compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from radixserve_kernels.cpu.linear import pack_linear
from radixserve_kernels.paged import visible
from radixserve_kernels.reference import ReferenceBackend

if TYPE_CHECKING:
    from radixserve_kernels.interface import Linear


class TorchBackend(ReferenceBackend):
    """The reference's algorithm in the model's dtype, with the heads of a group side by side so that K and V aren't repeated."""

    name = "torch"

    def _attend_one(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        queries, heads, dim = q.shape
        kv_heads = k.shape[1]
        # A group's heads become further queries of its KV head: row n * group + g of head h.
        grouped = q.reshape(queries, kv_heads, heads // kv_heads, dim).transpose(0, 1).flatten(1, 2)
        keys, values = k.to(q.dtype).transpose(0, 1), v.to(q.dtype).transpose(0, 1)
        scores = (grouped @ keys.transpose(1, 2)).float() * self.spec.scale
        if queries > 1 or self.spec.sliding_window:
            mask = visible(positions, k.shape[0], self.spec.sliding_window).repeat_interleave(heads // kv_heads, dim=0)
            scores = scores.masked_fill(~mask, float("-inf"))
        out = scores.softmax(dim=-1).to(q.dtype) @ values
        return out.view(kv_heads, queries, heads // kv_heads, dim).transpose(0, 1).reshape(queries, heads, dim)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Backend."""
        return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """See Backend and cpu/linear.py, which leaves other devices to `F.linear`."""
        return pack_linear(weight, bias)
