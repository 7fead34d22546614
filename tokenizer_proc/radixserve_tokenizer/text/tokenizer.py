"""Text to token ids and back, over a `tokenizers.Tokenizer` and the exact bytes of every token."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from radixserve_tokenizer.text.errors import InvalidTextError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tokenizers import Tokenizer

PrefixSpace: TypeAlias = Literal["never", "first", "always"]


class Control(NamedTuple):
    """A control token. `lstrip` and `rstrip`: white space beside it in a template belongs to it."""

    id: int
    lstrip: bool = False
    rstrip: bool = False


class TextTokenizer:
    """A model's tokenizer.

    `encode` treats all text as user text: control tokens come from a template or as ids, never from text. Like the model's
    own tokenizer it leaves out characters for which the vocabulary has no bytes (SmolLM2 has none for U+0004, for one).
    """

    def __init__(
        self,
        engine: Tokenizer,
        vocabulary: Sequence[bytes],
        control: Mapping[str, Control],
        *,
        eos_token_ids: Sequence[int],
        bos_token_id: int | None = None,
        add_bos: bool = False,
        chat_template: str | None = None,
        template_tokens: Mapping[str, str] | None = None,
        prefix_space: PrefixSpace = "never",
        continuing: Tokenizer | None = None,
    ) -> None:
        """`continuing` encodes text that goes on from other text: `engine` without its prefix space. `template_tokens` are
        a template's variables bos_token, eos_token and the like."""
        self.vocabulary: tuple[bytes, ...] = tuple(vocabulary)
        self.control: dict[str, Control] = dict(control)
        self.special: dict[str, int] = {text: token.id for text, token in control.items()}
        self.eos_token_ids: tuple[int, ...] = tuple(eos_token_ids)
        self.bos_token_id = bos_token_id
        self.add_bos = add_bos and bos_token_id is not None
        self.chat_template = chat_template
        self.template_tokens: dict[str, str] = dict(template_tokens or {})
        self.prefix_space: PrefixSpace = prefix_space
        self._engine = engine
        self._continuing = continuing if continuing is not None else engine
        for each in (self._engine, self._continuing):
            each.encode_special_tokens = True  # their text is text
            each.no_truncation()
            each.no_padding()
        self._control_ids = frozenset(self.special.values())
        self._special_text = {id: text for text, id in self.special.items()}

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self.vocabulary)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the vocabulary's bytes."""
        digest = hashlib.sha256()
        for token in self.vocabulary:
            digest.update(len(token).to_bytes(4, "little"))
            digest.update(token)
        return digest.hexdigest()[:32]

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token: a text of n characters has at least n / longest_token tokens."""
        return max(map(len, self.vocabulary), default=0) or 1

    def split_control(self, text: str) -> Iterator[str | int]:
        """A template's own text as its control tokens (ids) and the text between them, which may be empty."""
        at = 0
        for match in self._control_pattern.finditer(text):
            yield text[at : match.start()]
            found = match.group()
            yield self.special[found if found in self.special else found.strip()]
            at = match.end()
        yield text[at:]

    def encode(self, text: str, *, continues: bool = False) -> list[int]:
        """Ids of user text. `continues`: the text goes on from other text, so a SentencePiece tokenizer puts no space before it.

        Raises `InvalidTextError` for a lone surrogate.
        """
        check_text(text)
        engine = self._continuing if continues else self._engine
        encoding = engine.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._control_ids.isdisjoint(ids):
            return ids
        return self._encode_apart(text, ids, encoding.offsets)

    def encode_bytes(self, raw: bytes) -> list[int]:
        """Ids of bytes that go on from other text; bytes that are no UTF-8 become single-byte tokens where there are such."""
        ids: list[int] = []
        while raw:
            try:
                return ids + self.encode(raw.decode("utf-8"), continues=True)
            except UnicodeDecodeError as error:
                if error.start:
                    ids += self.encode(raw[: error.start].decode("utf-8"), continues=True)
                stray, raw = raw[error.start : error.end], raw[error.end :]
                ids += [self._byte_ids[byte] for byte in stray if byte in self._byte_ids]
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of a whole sequence; what is no UTF-8 becomes U+FFFD. A prefix space that encoding had added is taken off."""
        pieces = [
            self.vocabulary[id] if skip_special or id not in self._special_text else self._special_text[id].encode() for id in ids
        ]
        text = b"".join(pieces).decode("utf-8", "replace")
        return text[1:] if self.prefix_space != "never" and text.startswith(" ") else text

    def token_text(self, id: int) -> str:
        """How one token is shown: a control token as its own text, incomplete characters as U+FFFD, an unknown id as nothing."""
        if id in self._special_text:
            return self._special_text[id]
        return self.vocabulary[id].decode("utf-8", "replace") if 0 <= id < len(self.vocabulary) else ""

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        """Longer texts first; with the white space that belongs to a token."""
        tokens = sorted(self.control.items(), key=lambda item: len(item[0]), reverse=True)
        each = [(r"\s*" if token.lstrip else "") + re.escape(text) + (r"\s*" if token.rstrip else "") for text, token in tokens]
        return re.compile("|".join(each) or r"(?!)")

    @cached_property
    def _byte_ids(self) -> dict[int, int]:
        return {token[0]: id for id, token in reversed(list(enumerate(self.vocabulary))) if len(token) == 1}

    def _encode_apart(self, text: str, ids: list[int], offsets: Sequence[tuple[int, int]]) -> list[int]:
        """Encode again what became a control token although it is text: in two parts, so that it cannot be that token."""
        out: list[int] = []
        for id, (begin, end) in zip(ids, offsets, strict=True):
            if id not in self._control_ids:
                out.append(id)
            elif end - begin > 1:
                out += self.encode(text[begin : begin + 1], continues=begin > 0)
                out += self.encode(text[begin + 1 : end], continues=True)
            # else: the unknown token of a character that the vocabulary lacks, which is left out
        return out


def check_text(text: str, param: str = "") -> None:
    """Raise `InvalidTextError` when `text` holds half of a surrogate pair, which no encoding of Unicode can carry."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InvalidTextError(
            f"the text is not valid Unicode: U+{code:04X} at character {error.start} is half of a surrogate pair", param
        ) from None
