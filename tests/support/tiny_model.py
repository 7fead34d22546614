"""Random tiny checkpoints with a working tokenizer, so that the whole road can be tested in seconds and offline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

Arch: TypeAlias = Literal["llama", "mistral", "qwen2", "qwen3"]

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1 and 2; the last one ends a turn."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

ARCHITECTURES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

_TEXT = """
A program is a tree: it opens with a system prompt that many runs share, forks into branches, calls tools and comes back.
The weather in Paris is sunny today, and in London it rains. What is the capital of France? The capital of France is Paris.
You are a helpful assistant. Answer with yes or no. The answer is no. Let me think about the question step by step.
def main(x): return [i for i in range(10) if i % 2 == 0]  # a list of even numbers
{"name": "Alice", "age": 30, "city": "Zürich", "tags": ["red", "green", "blue"], "ok": true, "nothing": null}
Once upon a time there was a little engine that read the same page again and again, until someone gave it the whole book.
Water boils at one hundred degrees; ice melts at zero. The quick brown fox jumps over the lazy dog, twice, every Monday.
First, second, third: the user asks, the assistant answers, the system waits. Please write a short story about the sea.
"""


def train_tokenizer(vocab_size: int = 512) -> Tokenizer:
    """Byte-level BPE that splits digits, as SmolLM2's: 3 special tokens, 256 bytes, merges. Always the same for a size.

    Large sizes end where the built-in text does: the ids above stay unused, as in many real models.
    """
    if vocab_size < 256 + len(SPECIAL_TOKENS):
        raise ValueError(f"vocab_size {vocab_size} has no room for every byte and the special tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT.splitlines(), trainer)
    return tokenizer


def tiny_config(arch: Arch = "llama", vocab_size: int = 512, **overrides: object) -> dict[str, object]:
    """config.json of a tiny model. An override of None writes null."""
    config: dict[str, object] = {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": vocab_size,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if arch == "mistral":
        config["sliding_window"] = None
    return config | overrides


def tiny_weights(config: Mapping[str, object], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Every tensor by Hugging Face's name, float32. Scaled so that greedy output wanders instead of repeating one token."""
    rng = np.random.default_rng(seed)
    number = {key: int(value) for key, value in config.items() if isinstance(value, int)}
    arch = config["model_type"]
    hidden, inner, head_dim = number["hidden_size"], number["intermediate_size"], number["head_dim"]
    q, kv = number["num_attention_heads"] * head_dim, number["num_key_value_heads"] * head_dim
    attention_bias = config.get("attention_bias") is True
    qkv_bias, mlp_bias = attention_bias or arch == "qwen2", config.get("mlp_bias") is True

    def normal(*shape: int, scale: float) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def norm(size: int) -> NDArray[np.float32]:
        return (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)

    weights = {"model.embed_tokens.weight": normal(number["vocab_size"], hidden, scale=1.0)}
    for i in range(number["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        weights[prefix + "input_layernorm.weight"] = norm(hidden)
        weights[prefix + "post_attention_layernorm.weight"] = norm(hidden)
        for name, rows, columns, has_bias in (
            ("self_attn.q_proj", q, hidden, qkv_bias),
            ("self_attn.k_proj", kv, hidden, qkv_bias),
            ("self_attn.v_proj", kv, hidden, qkv_bias),
            ("self_attn.o_proj", hidden, q, attention_bias),
            ("mlp.gate_proj", inner, hidden, mlp_bias),
            ("mlp.up_proj", inner, hidden, mlp_bias),
            ("mlp.down_proj", hidden, inner, mlp_bias),
        ):
            weights[f"{prefix}{name}.weight"] = normal(rows, columns, scale=2.0 / columns**0.5)
            if has_bias:
                weights[f"{prefix}{name}.bias"] = normal(rows, scale=0.5)
        if arch == "qwen3":
            weights[prefix + "self_attn.q_norm.weight"] = norm(head_dim)
            weights[prefix + "self_attn.k_norm.weight"] = norm(head_dim)
    weights["model.norm.weight"] = norm(hidden)
    if config["tie_word_embeddings"] is not True:
        weights["lm_head.weight"] = normal(number["vocab_size"], hidden, scale=3.0 / hidden**0.5)
    return weights


def write_tiny_checkpoint(folder: Path, arch: Arch = "llama", vocab_size: int = 512, seed: int = 0, **overrides: object) -> Path:
    """A Hugging Face folder: config.json, model.safetensors (float32), tokenizer.json and tokenizer_config.json.

    `overrides` replace settings of config.json, such as num_hidden_layers=1 or tie_word_embeddings=True. Returns `folder`.
    """
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(arch, vocab_size, **overrides)
    _write_json(folder / "config.json", config)
    save_file(tiny_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    train_tokenizer(vocab_size).save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": "<|endoftext|>",
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "chat_template": CHAT_TEMPLATE,
        },
    )
    return folder


def write_tiny_gguf(
    path: Path,
    arch: Literal["llama", "qwen2", "qwen3"] = "llama",
    quantization: Literal["F32", "F16", "Q8_0", "Q4_0", "Q4_1"] = "F32",
    vocab_size: int = 512,
    seed: int = 0,
    settings: Mapping[str, float | str] | None = None,
    **overrides: object,
) -> Path:
    """The same model as `write_tiny_checkpoint` gives, as llama.cpp's converter would write it. Returns `path`.

    Matrices are stored in `quantization`, vectors in F32. Settings of `overrides` that GGUF states by tensors (biases) or not at all are
    followed too; rope scaling must be added by the caller, in `settings` (GGUF's own keys and values, as they are).
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    config = tiny_config(arch, vocab_size, **overrides)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, arch)
    _write_settings(writer, config)
    for key, setting in (settings or {}).items():
        (writer.add_string(key, setting) if isinstance(setting, str) else writer.add_float32(key, setting))
    _write_vocabulary(writer, train_tokenizer(vocab_size), vocab_size)
    for name, value in tiny_weights(config, seed).items():
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            value = np.ascontiguousarray(_interleaved(value, int(str(heads))))
        kind = GGMLQuantizationType[quantization if value.ndim == 2 else "F32"]
        writer.add_tensor(_gguf_name(name), quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_settings(writer: object, config: Mapping[str, object]) -> None:
    from gguf import GGUFWriter

    assert isinstance(writer, GGUFWriter)
    writer.add_name("tiny")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _write_vocabulary(writer: object, tokenizer: Tokenizer, vocab_size: int) -> None:
    from gguf import GGUFWriter, TokenType

    assert isinstance(writer, GGUFWriter)
    known = tokenizer.get_vocab_size()
    tokens = [tokenizer.id_to_token(i) if i < known else f"[PAD{i}]" for i in range(vocab_size)]
    types = [
        TokenType.CONTROL if i < len(SPECIAL_TOKENS) else TokenType.NORMAL if i < known else TokenType.UNUSED
        for i in range(vocab_size)
    ]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _interleaved(value: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of each head from half-split to interleaved rotary order, as llama.cpp's converter does for llama."""
    return value.reshape(heads, 2, value.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(value.shape)


def _gguf_name(name: str) -> str:
    for old, new in (
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ):
        name = name.replace(old, new)
    return name


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
