"""Attention over paged KV and the fused operators beside it: `reference`, `cpu` and `flashinfer` backends."""
