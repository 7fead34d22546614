"""What the decoder must know about a model, as data: the Llama family differs in these fields alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context that the model was first trained on."""

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original_max_context: int = 0
    """Tokens; llama3 and yarn."""
    low_freq_factor: float = 1.0
    """llama3."""
    high_freq_factor: float = 4.0
    """llama3."""
    beta_fast: float = 32.0
    """yarn: dimensions that turn more often than this within the original context keep their frequency."""
    beta_slow: float = 1.0
    """yarn: those that turn less often are interpolated."""
    attention_factor: float = 1.0
    """yarn: multiplies cos and sin."""
    truncate: bool = True
    """yarn: round the bounds of the ramp to whole dimensions."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer: RMSNorm, rotary embedding, grouped-query attention, SiLU-gated MLP."""

    architecture: str
    """Hugging Face's name, such as LlamaForCausalLM."""
    hidden_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    """Rows of the embedding; a tokenizer may know fewer."""
    rms_eps: float
    rope_theta: float
    max_context: int
    """Tokens."""
    rope_scaling: RopeScaling | None = None
    tied_embeddings: bool = False
    """The LM head is the embedding."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each head of q and k before the rotary embedding (Qwen3)."""
    sliding_window: int = 0
    """0: none. Otherwise a token sees the last `sliding_window` positions, itself included."""
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end a generation, ascending."""

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.num_q_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all KV heads."""
        return self.num_kv_heads * self.head_dim
