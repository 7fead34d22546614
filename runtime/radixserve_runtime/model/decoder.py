"""The decoder: one forward pass over a ragged batch, on whatever backend it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from radixserve_kernels.interface import AttentionSpec, DecoderLayer
from radixserve_runtime.model.config import read_config
from radixserve_runtime.model.gguf import load_gguf
from radixserve_runtime.model.gguf_file import GgufFile
from radixserve_runtime.model.quantize import make_quantizer
from radixserve_runtime.model.rope import cos_sin_table
from radixserve_runtime.model.safetensors import load_safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve_kernels.interface import Backend, Linear, RaggedBatch
    from radixserve_runtime.model.architecture import ModelConfig
    from radixserve_runtime.model.quantize import Quantization
    from radixserve_runtime.model.weights import LayerWeights, Matrix, Progress, Weights

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class Decoder:
    """A model of the Llama family. Not thread-safe: one step at a time, as its backend."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        backend: Backend,
        dtype: torch.dtype,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> None:
        """Packs `weights` and empties them on the way, so that both forms of the model never exist at once."""
        self.config = config
        self.backend = backend
        self.dtype = dtype
        self.device = torch.device(device)
        # What every layer of every step asks for.
        self._split = (config.num_q_heads, config.num_kv_heads, config.num_kv_heads)
        self._num_heads = sum(self._split)
        self._head_dim, self._q_size, self._eps = config.head_dim, config.q_size, config.rms_eps
        self._embedding = weights.embedding.to(self.device, dtype)
        self._final_norm = weights.final_norm.to(self.device, dtype)
        self._lm_head = self._linear(self._embedding if weights.lm_head is None else weights.lm_head, None)
        weights.lm_head = None
        self._cos_sin = cos_sin_table(config, weights.rope_factors).to(self.device)
        self._layers: list[DecoderLayer] = []
        weights.layers.reverse()
        while weights.layers:
            self._layers.append(self._pack(weights.layers.pop()))
            if progress is not None:
                progress("packing weights", len(self._layers) / config.num_layers)
        self._stack = backend.fuse_layers(self._layers, self._final_norm, self._cos_sin, self._eps)

    def _pack(self, layer: LayerWeights) -> DecoderLayer:
        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self.device, self.dtype)

        def move_if(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else move(tensor)

        return DecoderLayer(
            attn_norm=move(layer.attn_norm),
            qkv=self._linear(layer.qkv, layer.qkv_bias),
            q_norm=move_if(layer.q_norm),
            k_norm=move_if(layer.k_norm),
            o=self._linear(layer.o, layer.o_bias),
            mlp_norm=move(layer.mlp_norm),
            gate_up=self._linear(layer.gate_up, layer.gate_up_bias),
            down=self._linear(layer.down, layer.down_bias),
        )

    def _linear(self, weight: Matrix, bias: torch.Tensor | None) -> Linear:
        moved = None if bias is None else bias.to(self.device, self.dtype)
        if isinstance(weight, torch.Tensor):
            return self.backend.pack_linear(weight.to(self.device, self.dtype), moved)
        return self.backend.pack_quantized([part.to(self.device) for part in weight], moved, self.dtype)

    @torch.inference_mode()
    def forward(self, token_ids: torch.Tensor, batch: RaggedBatch, logit_rows: torch.Tensor) -> torch.Tensor:
        """Run one step: write the KV of every token, and return logits [R, vocab] float32 for the rows that want them.

        token_ids [T] int64 are the batch's tokens; logit_rows [R] int64 are rows of them, R may be 0. Tokens whose logits
        nobody wants leave the last layer once their KV is written.
        """
        self.backend.prepare(batch)
        positions = batch.positions.to(self.device)
        rows = logit_rows.to(self.device)
        embedded = self._embedding.index_select(0, token_ids.to(self.device))
        run = self._stack or self._one_by_one
        hidden = run(embedded, positions, rows)
        if not rows.shape[0]:
            return torch.empty((0, self.config.vocab_size), dtype=torch.float32, device=self.device)
        return self.backend.logits(self._lm_head, hidden)

    def _one_by_one(self, residual: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The layers where the backend has no call for all of them: see LayerStack."""
        backend, layers, eps = self.backend, self._layers, self._eps
        x = backend.rms_norm(residual, layers[0].attn_norm, eps)
        last = len(layers) - 1
        for i, layer in enumerate(layers):
            attended = self._attend(i, layer, x, positions)
            if i == last:
                if not rows.shape[0]:
                    return attended[:0]
                attended, residual = attended.index_select(0, rows), residual.index_select(0, rows)
            x, residual = backend.add_rms_norm(layer.o(attended), residual, layer.mlp_norm, eps)
            x = layer.down(backend.silu_mul(layer.gate_up(x)))
            norm = self._final_norm if i == last else layers[i + 1].attn_norm
            x, residual = backend.add_rms_norm(x, residual, norm, eps)
        return x

    def _attend(self, i: int, layer: DecoderLayer, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x [T, hidden] to [T, q_size]: projections, rotary embedding and attention of layer i."""
        backend, num_tokens = self.backend, x.shape[0]
        heads = layer.qkv(x).view(num_tokens, self._num_heads, self._head_dim)
        q, k, v = heads.split_with_sizes(self._split, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = backend.rms_norm(q, layer.q_norm, self._eps)
            k = backend.rms_norm(k, layer.k_norm, self._eps)
        backend.rotary(q, k, self._cos_sin, positions)
        return backend.attend(i, q, k, v).reshape(num_tokens, self._q_size)


def attention_spec(config: ModelConfig) -> AttentionSpec:
    """What a backend must know of the model."""
    return AttentionSpec(
        num_layers=config.num_layers,
        num_q_heads=config.num_q_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        sliding_window=config.sliding_window if config.sliding_window < config.max_context else 0,
    )


def load_model(
    path: Path,
    dtype: str,
    backend: Backend,
    progress: Progress | None = None,
    device: str = "cpu",
    quantization: Quantization = "none",
) -> Decoder:
    """The model in `path` (see `read_config`), ready to run. `dtype` is "bfloat16" or "float32".

    With `quantization` matrices are in 8 or 4 bits; `dtype` is that of everything else.

    `progress` hears what is being done and how far it is, from 0 to 1. Raises ModelError.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(_DTYPES)}")
    config = read_config(path)
    torch_dtype = _DTYPES[dtype]
    if path.is_dir():
        weights = load_safetensors(path, config, torch_dtype, progress, make_quantizer(quantization))
    else:
        weights = load_gguf(GgufFile(path), config, torch_dtype, progress, make_quantizer(quantization))
    return Decoder(config, weights, backend, torch_dtype, device, progress)
