"""Ragged batches for the kernel tests."""

from __future__ import annotations

from itertools import chain

import torch

from radixserve_kernels.interface import AttentionSpec, RaggedBatch


def spec(num_layers=1, heads=(4, 2), head_dim=32, window=0):
    return AttentionSpec(num_layers, heads[0], heads[1], head_dim, head_dim**-0.5, window)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def ragged(sequences, page_size, num_pages, seed=0, spare_pages=0):
    """A batch of (new tokens, tokens in all) whose pages are scattered over the pool; each may own pages ahead of its tokens."""
    free = torch.randperm(num_pages, generator=torch.Generator().manual_seed(seed)).tolist()
    tables = [[free.pop() for _ in range(-(-total // page_size) + spare_pages)] for _, total in sequences]
    return with_pages(sequences, tables, page_size)


def with_pages(sequences, tables, page_size):
    positions = [list(range(total - new, total)) for new, total in sequences]
    slots = [
        [table[p // page_size] * page_size + p % page_size for p in rows] for rows, table in zip(positions, tables, strict=True)
    ]
    return RaggedBatch(
        qo_indptr=int32([0, *torch.tensor([new for new, _ in sequences]).cumsum(0).tolist()]),
        kv_len=int32([total for _, total in sequences]),
        page_indptr=int32([0, *torch.tensor([len(table) for table in tables]).cumsum(0).tolist()]),
        page_indices=int32(list(chain.from_iterable(tables))),
        positions=int32(list(chain.from_iterable(positions))),
        slots=int32(list(chain.from_iterable(slots))),
        page_size_tokens=page_size,
    )


def random_qkv(tokens, spec, dtype, seed=0):
    """q, k, v as strided views of one fused projection, as the model passes them."""
    widths = [spec.num_q_heads, spec.num_kv_heads, spec.num_kv_heads]
    fused = torch.randn(tokens, sum(widths) * spec.head_dim, generator=torch.Generator().manual_seed(seed)).to(dtype)
    parts = fused.split([n * spec.head_dim for n in widths], dim=1)
    return tuple(part.unflatten(1, (n, spec.head_dim)) for part, n in zip(parts, widths, strict=True))


def fill_pool(backend, num_pages, page_size, dtype, seed=1):
    """Allocate and fill: the same contents for every backend."""
    backend.allocate_kv(num_pages, page_size, dtype)
    pool = backend.kv_pool
    pool.copy_(torch.randn(pool.shape, generator=torch.Generator().manual_seed(seed)).to(dtype))
