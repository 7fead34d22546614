"""Loading a tokenizer from a checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.text.errors import TokenizerLoadError
from radixserve_tokenizer.text.gguf_metadata import GGUFError, read_metadata
from radixserve_tokenizer.text.gguf_tokenizer import tokenizer_from_metadata
from radixserve_tokenizer.text.tokenizer import Control, PrefixSpace, TextTokenizer
from radixserve_tokenizer.text.vocabulary import byte_level_bytes, sentencepiece_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tokenizers import Tokenizer

_TEMPLATE_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def load_tokenizer(path: Path) -> TextTokenizer:
    """The tokenizer of a GGUF file or a Hugging Face folder. Raises `TokenizerLoadError`."""
    try:
        return _from_folder(path) if path.is_dir() else tokenizer_from_metadata(read_metadata(path))
    except (GGUFError, OSError) as error:
        raise TokenizerLoadError(f"cannot read the tokenizer of {path}: {error}") from error


def _from_folder(folder: Path) -> TextTokenizer:
    if not (folder / "tokenizer.json").is_file():
        raise TokenizerLoadError(
            f"{folder} has no tokenizer.json. Save one with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    spec = _read_json(folder / "tokenizer.json")
    settings = _read_json(folder / "tokenizer_config.json")
    engine = _engine(spec)
    prefix_space = _prefix_space(spec)
    control = {
        token["content"]: Control(token["id"], bool(token.get("lstrip")), bool(token.get("rstrip")))
        for token in spec.get("added_tokens") or ()
        if token.get("special")
    }
    template_tokens = _template_tokens(folder, settings)
    bos = control.get(template_tokens.get("bos_token", ""))
    return TextTokenizer(
        engine,
        _vocabulary(spec, engine, control),
        control,
        eos_token_ids=_eos_token_ids(folder, template_tokens, engine),
        bos_token_id=bos.id if bos else None,
        add_bos=bos is not None and engine.encode("a").ids[:1] == [bos.id],
        chat_template=_chat_template(folder, settings),
        template_tokens=template_tokens,
        prefix_space=prefix_space,
        continuing=None if prefix_space == "never" else _engine(_without_prefix_space(spec)),
    )


def _engine(spec: dict[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(spec, ensure_ascii=False))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerLoadError(f"tokenizer.json cannot be used: {error}") from error


def _vocabulary(spec: dict[str, Any], engine: Tokenizer, control: dict[str, Control]) -> list[bytes]:
    """Bytes by id. Ids without a token, and control tokens, have none."""
    added = {token["content"] for token in spec.get("added_tokens") or ()}
    kinds = {part.get("type") for part in _parts(spec.get("decoder"))}
    if "ByteLevel" in kinds:
        to_bytes = byte_level_bytes
    elif kinds & {"ByteFallback", "Metaspace", "Replace"}:
        to_bytes = sentencepiece_bytes
    else:
        raise TokenizerLoadError(
            f"tokenizer.json has the decoder {sorted(map(str, kinds))}; byte-level and SentencePiece tokenizers are supported"
        )
    tokens: dict[str, int] = engine.get_vocab(with_added_tokens=True)
    vocabulary = [b""] * (max(tokens.values(), default=-1) + 1)
    for token, id in tokens.items():
        if token not in control:
            vocabulary[id] = token.encode() if token in added else to_bytes(token)
    return vocabulary


def _parts(node: Any) -> Iterator[dict[str, Any]]:
    """A component of tokenizer.json and, when it is a sequence, what is in it."""
    if isinstance(node, dict):
        yield node
        for key in ("normalizers", "pretokenizers", "decoders"):
            for child in node.get(key) or ():
                yield from _parts(child)


def _prefix_space(spec: dict[str, Any]) -> PrefixSpace:
    """Whether the tokenizer puts a space before a text, or before each stretch of text between control tokens."""
    if any(part.get("type") == "Prepend" for part in _parts(spec.get("normalizer"))):
        return "always"
    for part in _parts(spec.get("pre_tokenizer")):
        if part.get("type") == "Metaspace":
            scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
            return scheme if scheme in ("never", "first") else "always"
        if part.get("type") == "ByteLevel" and part.get("add_prefix_space"):
            return "always"
    return "never"


def _without_prefix_space(spec: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer.json with no space put before anything."""
    changed: dict[str, Any] = json.loads(json.dumps({key: spec.get(key) for key in ("normalizer", "pre_tokenizer")}))
    for part in _parts(changed["normalizer"]):
        if part.get("type") == "Prepend":
            part.clear()
            part.update(type="Sequence", normalizers=[])
    for part in _parts(changed["pre_tokenizer"]):
        if part.get("type") == "Metaspace":
            part["prepend_scheme"] = "never"
            part.pop("add_prefix_space", None)
        elif part.get("type") == "ByteLevel":
            part["add_prefix_space"] = False
    return spec | changed


def _template_tokens(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    named = _read_json(folder / "special_tokens_map.json") | settings
    found = {key: _token_text(named.get(key)) for key in _TEMPLATE_TOKENS}
    return {key: text for key, text in found.items() if text is not None}


def _token_text(value: Any) -> str | None:
    """A token is written as its text, or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _eos_token_ids(folder: Path, template_tokens: dict[str, str], engine: Tokenizer) -> list[int]:
    """What ends a generation: generation_config.json (config.json where there is none), and the tokenizer's own eos token."""
    source = "generation_config.json" if (folder / "generation_config.json").is_file() else "config.json"
    value = _read_json(folder / source).get("eos_token_id")
    ids = [id for id in (value if isinstance(value, list) else [value]) if isinstance(id, int)]
    own = engine.token_to_id(template_tokens["eos_token"]) if "eos_token" in template_tokens else None
    return ids if own is None or own in ids else [*ids, own]


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja first, as newer checkpoints have it; of several named templates the one named default."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = _read_json(folder / "chat_template.json").get("chat_template", settings.get("chat_template"))
    if isinstance(template, list):
        template = next((each.get("template") for each in template if each.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _read_json(file: Path) -> dict[str, Any]:
    """The object in `file`; empty when there is no such file."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerLoadError(f"{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerLoadError(f"{file} holds no JSON object")
    return value
