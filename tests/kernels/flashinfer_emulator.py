"""FlashInfer's documented contract in plain PyTorch: refuses what the real one would refuse or misread, and computes the right answer."""

from __future__ import annotations

import torch

from radixserve_kernels.interface import AttentionSpec, RaggedBatch
from radixserve_kernels.reference import ReferenceBackend


class ContractError(AssertionError):
    """FlashInfer was called in a way that its documentation doesn't allow."""


def _require(condition, message):
    if not condition:
        raise ContractError(message)


def _check_indptr(name, indptr, length, total):
    _require(indptr.dtype is torch.int32 and indptr.dim() == 1, f"{name} must be an int32 vector")
    _require(indptr.shape[0] == length, f"{name} must have batch size + 1 entries")
    _require(int(indptr[0]) == 0 and bool((indptr.diff() >= 0).all()), f"{name} must start at 0 and never fall")
    _require(int(indptr[-1]) == total, f"{name} must end at {total}")


class BatchPrefillWithPagedKVCacheWrapper:
    """plan, then run for every layer."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        _require(float_workspace_buffer.dtype is torch.uint8, "the workspace is bytes")
        _require(float_workspace_buffer.numel() >= 128 * 1024 * 1024, "the workspace should have 128 MiB")
        _require(kv_layout == "NHD", "only NHD is emulated")
        self.plans = 0
        self._plan = None

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        *,
        causal=False,
        sm_scale=None,
        window_left=-1,
        q_data_type="float16",
        kv_data_type=None,
    ):
        for tensor in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len):
            _require(tensor.device.type == "cpu", "plan copies its index tensors to the host: pass CPU tensors")
            _require(tensor.dtype is torch.int32, "index tensors are int32")
        batch = paged_kv_last_page_len.shape[0]
        _check_indptr("qo_indptr", qo_indptr, batch + 1, int(qo_indptr[-1]))
        _check_indptr("paged_kv_indptr", paged_kv_indptr, batch + 1, paged_kv_indices.shape[0])
        last = paged_kv_last_page_len
        _require(bool(((last >= 1) & (last <= page_size)).all()), "last_page_len lies in 1..page_size")
        _require(isinstance(q_data_type, torch.dtype), "q_data_type defaults to float16: say which")
        _require(num_qo_heads % num_kv_heads == 0, "query heads are a multiple of KV heads")
        kv_len = (paged_kv_indptr.diff() - 1) * page_size + last
        _require(bool((kv_len >= qo_indptr.diff()).all()), "causal attention needs as many keys as queries")
        self._plan = {
            "qo_indptr": qo_indptr,
            "kv_len": kv_len.to(torch.int32),
            "indptr": paged_kv_indptr,
            "indices": paged_kv_indices,
            "shape": (num_qo_heads, num_kv_heads, head_dim_qk, page_size),
            "causal": causal,
            "scale": head_dim_qk**-0.5 if sm_scale is None else sm_scale,
            "window": window_left + 1 if window_left >= 0 else 0,
            "dtypes": (q_data_type, q_data_type if kv_data_type is None else kv_data_type),
        }
        self.plans += 1

    def run(self, q, paged_kv_cache):
        plan = self._plan
        _require(plan is not None, "run before plan")
        q_heads, kv_heads, dim, page_size = plan["shape"]
        k_cache, v_cache = paged_kv_cache
        _require(plan["causal"], "the emulator knows causal attention alone")
        _require(q.is_contiguous() and q.shape == (int(plan["qo_indptr"][-1]), q_heads, dim), "q does not match the plan")
        _require(
            k_cache.shape == v_cache.shape and k_cache.shape[1:] == (page_size, kv_heads, dim),
            "the cache does not match the plan",
        )
        _require((q.dtype, k_cache.dtype) == plan["dtypes"], "dtypes do not match the plan")
        tokens = q.shape[0]
        zeros = torch.zeros(tokens, dtype=torch.int32)
        reference = ReferenceBackend(AttentionSpec(1, q_heads, kv_heads, dim, plan["scale"], plan["window"]))
        # A private copy of the cache with one page more, where this call's own (meaningless) writes go.
        reference.allocate_kv(k_cache.shape[0] + 1, page_size, k_cache.dtype)
        reference.kv_pool[0, 0, :-1], reference.kv_pool[0, 1, :-1] = k_cache, v_cache
        reference.prepare(
            RaggedBatch(
                plan["qo_indptr"],
                plan["kv_len"],
                plan["indptr"],
                plan["indices"],
                zeros,
                zeros + k_cache.shape[0] * page_size,
                page_size,
            )
        )
        nothing = q.new_zeros(tokens, kv_heads, dim)
        return reference.attend(0, q, nothing, nothing)


def append_paged_kv_cache(
    append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr, kv_last_page_len, kv_layout="NHD"
):
    k_cache, v_cache = paged_kv_cache
    for tensor in (batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len):
        _require(tensor.dtype is torch.int32, "index tensors are int32")
    _require(append_key.is_contiguous() and append_value.is_contiguous(), "appended rows are contiguous")
    _require(append_key.dtype == append_value.dtype == k_cache.dtype, "the kernel dispatches on the cache's dtype: cast first")
    _require(
        append_key.shape == append_value.shape == (positions.shape[0], *k_cache.shape[2:]), "appended rows do not fit the cache"
    )
    page_size = k_cache.shape[1]
    for row, (sequence, position) in enumerate(zip(batch_indices.tolist(), positions.tolist(), strict=True)):
        begin, end = kv_indptr[sequence : sequence + 2].tolist()
        length = (end - begin - 1) * page_size + int(kv_last_page_len[sequence])
        _require(0 <= position < length, "a position lies beyond its sequence")
        page = int(kv_indices[begin + position // page_size])
        k_cache[page, position % page_size] = append_key[row]
        v_cache[page, position % page_size] = append_value[row]


def _operators():
    return ReferenceBackend(AttentionSpec(1, 1, 1, 2, 1.0))


def rmsnorm(input, weight, eps=1e-6):
    _require(input.dim() == 2 and input.stride(1) == 1, "rmsnorm takes [tokens, hidden]")
    _require(weight.dtype == input.dtype, "the weight has the input's dtype")
    return _operators().rms_norm(input, weight, eps)


def fused_add_rmsnorm(input, residual, weight, eps=1e-6):
    _require(input.dim() == 2 and input.shape == residual.shape, "fused_add_rmsnorm takes two [tokens, hidden]")
    _require(input.is_contiguous() and residual.is_contiguous(), "it works in place")
    normed, total = _operators().add_rms_norm(input, residual, weight, eps)
    input.copy_(normed)
    residual.copy_(total)


def apply_rope_with_cos_sin_cache_inplace(positions, query, key, head_size, cos_sin_cache, is_neox=True):
    _require(cos_sin_cache.dtype is torch.float32, "cos_sin_cache is float32")
    _require(query.dim() == key.dim() == 2 and query.stride(1) == key.stride(1) == 1, "heads are flattened")
    _require(query.shape[1] % head_size == 0 and key.shape[1] % head_size == 0, "the width is a multiple of head_size")
    _require(is_neox, "the emulator knows the half-split form alone")
    _operators().rotary(query.unflatten(1, (-1, head_size)), key.unflatten(1, (-1, head_size)), cos_sin_cache, positions)


def silu_and_mul(input):
    _require(input.shape[-1] % 2 == 0, "an even width")
    return _operators().silu_mul(input)
