"""A tokenizer built from GGUF metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.text.errors import TokenizerLoadError
from radixserve_tokenizer.text.tokenizer import Control, TextTokenizer
from radixserve_tokenizer.text.vocabulary import byte_level_bytes, sentencepiece_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenizers import Tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

#: SentencePiece's spelling of a space.
_SPACE = "\u2581"

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

#: Control tokens that end a turn, whatever a file declares: many files name only the end of the text.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> TextTokenizer:
    """The tokenizer that the keys `tokenizer.ggml.*` and `tokenizer.chat_template` describe. Raises `TokenizerLoadError`."""
    model = metadata.get("tokenizer.ggml.model")
    tokens: list[str] | None = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise TokenizerLoadError("the GGUF file holds no tokenizer (tokenizer.ggml.tokens)")
    types: list[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise TokenizerLoadError(f"the GGUF file has {len(tokens)} tokens but {len(types)} token types")
    control = {token: Control(id) for id, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == _CONTROL}
    continuing: Tokenizer | None = None
    prefix_space = False
    if model == "gpt2":
        engine, to_bytes = _byte_level(metadata, tokens), byte_level_bytes
    elif model == "llama":
        engine, to_bytes = _sentencepiece(metadata, tokens, types), sentencepiece_bytes
        prefix_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    else:
        raise TokenizerLoadError(f"the tokenizer model {model!r} of this GGUF file is not supported (gpt2 and llama are)")
    _add_tokens(engine, tokens, types)
    if prefix_space:
        continuing, engine = engine, _with_prefix_space(engine)
    vocabulary = [
        b"" if kind in (_UNKNOWN, _CONTROL, _UNUSED) else token.encode() if kind == _USER_DEFINED else to_bytes(token)
        for token, kind in zip(tokens, types, strict=True)
    ]
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", model == "llama" or metadata.get("tokenizer.ggml.pre") == "llama-bpe")
    return TextTokenizer(
        engine,
        vocabulary,
        control,
        eos_token_ids=_eos_token_ids(metadata, control),
        bos_token_id=bos,
        add_bos=bool(add_bos),
        chat_template=metadata.get("tokenizer.chat_template"),
        template_tokens=_template_tokens(metadata, tokens),
        prefix_space="always" if prefix_space else "never",
        continuing=continuing,
    )


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    """Byte-level BPE with the text split that `tokenizer.ggml.pre` names."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    merges = [_merge(text) for text in metadata.get("tokenizer.ggml.merges") or ()]
    pre = metadata.get("tokenizer.ggml.pre", "default")
    whole_words = pre in ("llama-bpe", "llama3")
    vocabulary = {token: id for id, token in enumerate(tokens)}
    try:
        engine = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerLoadError(f"the vocabulary and merges of this GGUF file do not fit: {error}") from error
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in ("gpt-2", "gpt2", "default"):
        engine.pre_tokenizer = gpt2
    elif pre == "smollm":
        engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    elif pre in ("llama-bpe", "llama3", "qwen2"):
        split = Regex(_QWEN2_SPLIT if pre == "qwen2" else _LLAMA3_SPLIT)
        engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(split, "isolated"), bytes_only])
    else:
        raise TokenizerLoadError(
            f"the pre-tokenizer {pre!r} of this GGUF file is not supported (smollm, llama-bpe, qwen2, gpt-2 are); "
            "use the model's Hugging Face folder"
        )
    if pre == "qwen2":
        engine.normalizer = normalizers.NFC()
    return engine


def _merge(text: str) -> tuple[str, str]:
    """Byte-level spellings hold no space, so the one that is there separates the halves."""
    left, _, right = text.partition(" ")
    return left, right


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    """SentencePiece's BPE: of all pairs whose join is a token, the one with the best score is joined first."""
    from tokenizers import Tokenizer, models, normalizers

    scores: list[float] | None = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise TokenizerLoadError("the GGUF file has no score for each of its tokens (tokenizer.ggml.scores)")
    vocabulary = {token: id for id, token in enumerate(tokens)}
    joinable = {
        token for token, kind in zip(tokens, types, strict=True) if kind not in (_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED)
    }
    ranked: list[tuple[float, int, str, str]] = []
    for id, token in enumerate(tokens):
        if token in joinable:
            cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
            ranked += [(-scores[id], id, left, right) for left, right in cuts if left in joinable and right in joinable]
    merges = [(left, right) for _, _, left, right in sorted(ranked, key=lambda entry: entry[:2])]
    unknown = _token(tokens, metadata.get("tokenizer.ggml.unknown_token_id", 0))
    engine = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    engine.normalizer = normalizers.Replace(" ", _SPACE)
    return engine


def _with_prefix_space(engine: Tokenizer) -> Tokenizer:
    """The same tokenizer, which puts a space before each text."""
    from tokenizers import Tokenizer, normalizers

    other = Tokenizer.from_str(engine.to_str())
    other.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    return other


def _add_tokens(engine: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Tell the engine which tokens are matched whole: user-defined ones. Control tokens are added to be known as special."""
    from tokenizers import AddedToken

    kinds = list(zip(tokens, types, strict=True))
    engine.add_tokens([AddedToken(token, special=False, normalized=False) for token, kind in kinds if kind == _USER_DEFINED])
    engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind == _CONTROL])


def _eos_token_ids(metadata: Mapping[str, Any], control: Mapping[str, Control]) -> list[int]:
    declared = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    known = [control[text].id for text in _END_OF_TURN if text in control]
    return list(dict.fromkeys(id for id in [*declared, *known] if id is not None))


def _template_tokens(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    found = {variable: _token(tokens, metadata.get(f"tokenizer.ggml.{name}_token_id")) for variable, name in names.items()}
    return {variable: token for variable, token in found.items() if token is not None}


def _token(tokens: Sequence[str], id: int | None) -> str | None:
    return tokens[id] if id is not None and 0 <= id < len(tokens) else None
