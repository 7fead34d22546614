"""The exact bytes of tokens, from the spellings that vocabularies store."""

from __future__ import annotations

import re
from functools import cache

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones stand for themselves, the rest for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return alphabet | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level BPE token. A token outside that alphabet is one that was added as plain text."""
    alphabet = byte_level_alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """Bytes of a SentencePiece token: U+2581 is a space, <0xNN> a byte."""
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()
