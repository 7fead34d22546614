"""Where the values of a valid TOML document stand in its text, so that one can be changed and the rest kept as it is.

Only as much of TOML as that takes: strings, comments and brackets are told apart, nothing is interpreted. Who edits by these
places parses the result again and compares it with what it should say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KEY = re.compile(
    r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')(?:[ \t]*\.[ \t]*(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'))*"""
)
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|' r"'''.*?'{3,5}|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'",
    re.DOTALL,
)
_SKIP = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_PLAIN = re.compile(r"[^\n#]*")
_HEADER_END = re.compile(r"[ \t]*\]{1,2}")


@dataclass(frozen=True)
class Span:
    """A value: `text[start:end]`."""

    start: int
    end: int


def array_tables(text: str, name: str) -> list[dict[str, Span]]:
    """For each table `[[name]]` in order: its keys (bare, as written without quotes), and where their values stand."""
    tables: list[dict[str, Span]] = []
    current: dict[str, Span] | None = None
    position = _skip(text, 0)
    while position < len(text):
        if text[position] == "[":
            is_array = text.startswith("[[", position)
            key, position = _key(text, position + (2 if is_array else 1))
            current = {} if is_array and key == name else None
            if current is not None:
                tables.append(current)
            position = _matched(_HEADER_END, text, position)
        else:
            key, position = _key(text, position)
            start = _skip(text, text.index("=", position) + 1)
            position = _value_end(text, start)
            if current is not None:
                current[key] = Span(start, position)
        position = _skip(text, position)
    return tables


def end_of_line(text: str, position: int) -> int:
    """The position of the line's end (its newline, or the end of the text)."""
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    return end - 1 if text[end - 1 : end] == "\r" else end


def _skip(text: str, position: int) -> int:
    """Past blanks, newlines and comments."""
    return _matched(_SKIP, text, position)


def _key(text: str, position: int) -> tuple[str, int]:
    position = _skip(text, position)
    end = _matched(_KEY, text, position)
    return text[position:end].strip("\"'"), end


def _value_end(text: str, position: int) -> int:
    """The end of the value that begins here."""
    if text[position] in "\"'":
        return _matched(_STRING, text, position)
    if text[position] not in "[{":
        plain = _PLAIN.match(text, position)
        return position + len(plain.group().rstrip()) if plain else position
    depth = 0
    while True:
        if text[position] in "\"'":
            position = _matched(_STRING, text, position)
            continue
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(text[position], 0)
        position += 1
        if depth == 0:
            return position
        position = _skip(text, position)


def _matched(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    if match is None:
        raise ValueError(f"not TOML at character {position}")
    return match.end()
