"""Sets of strings, as `pattern`, `minLength`, `enum` and their negations describe them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar import charset
from radixserve_tokenizer.grammar.counts import WRITTEN, Counted, counted_part, is_long
from radixserve_tokenizer.grammar.regex import Chars, Choice, Concat, Node, Repeat, alternatives, parse
from radixserve_tokenizer.grammar.schema import automaton
from radixserve_tokenizer.grammar.schema.errors import TooComplexError

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.schema.automaton import Automaton

_ANYTHING: Node = Repeat(Chars(charset.ANY), 0, -1)
#: Lengths above this are not multiplied with patterns: an automaton has a state for each.
MAX_COUNTED_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class Texts:
    """Strings that fulfil all of this."""

    low: int = 0
    high: int | None = None
    """Length in characters."""
    patterns: frozenset[tuple[str, bool]] = frozenset()
    """(expression as `pattern` has it: a search; whether it must be found)."""
    allowed: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()

    def meet(self, other: Texts) -> Texts:
        """Strings of both."""
        highs = [high for high in (self.high, other.high) if high is not None]
        if self.allowed is None or other.allowed is None:
            allowed = other.allowed if self.allowed is None else self.allowed
        else:
            allowed = self.allowed & other.allowed
        return Texts(
            max(self.low, other.low),
            min(highs) if highs else None,
            self.patterns | other.patterns,
            allowed,
            self.excluded | other.excluded,
        ).settled()

    def settled(self) -> Texts:
        """With the other conditions applied to a finite set."""
        if self.allowed is None:
            return self
        rest = replace(self, allowed=None)
        return Texts(allowed=frozenset(word for word in self.allowed if rest.has(word)))

    def has(self, word: str) -> bool:
        """Whether a string belongs to it."""
        if not self.low <= len(word) or (self.high is not None and len(word) > self.high):
            return False
        if word in self.excluded or (self.allowed is not None and word not in self.allowed):
            return False
        return all(pattern_automaton(pattern).accepts(word) == wanted for pattern, wanted in self.patterns)

    @property
    def is_empty(self) -> bool:
        """No string at all. Raises `RegexError` and `TooComplexError`."""
        if self.allowed is not None:
            return not self.allowed
        if self.high is not None and self.low > self.high:
            return True
        is_bounded = self.high is not None
        if len(self.patterns) == 1 and not (self.low or is_bounded or self.excluded):
            return not next(iter(self.patterns))[1] and self.automaton().is_empty
        if (not self.patterns and not (self.excluded and is_bounded)) or self.counted() is not None:
            return False
        return self.automaton().is_empty

    def automaton(self) -> Automaton:
        """The language. Raises `RegexError` and `TooComplexError`."""
        if self.allowed is not None:
            return automaton.of_words(self.allowed)
        found = automaton.ANYTHING
        for pattern, wanted in sorted(self.patterns):
            one = pattern_automaton(pattern)
            found &= one if wanted else one.complement
        if self.excluded:
            found &= automaton.of_words(self.excluded).complement
        if self.low or self.high is not None:
            found &= _lengths(self.low, self.high)
        return found

    def counted(self) -> Counted | None:
        """Where all that is left is to count characters of one kind: which, and how many. A string that there is, then."""
        if self.allowed is not None or self.excluded or len(self.patterns) > 1:
            return None
        if not self.patterns:
            return Counted(charset.ANY, self.low, self.high) if self.high is not None or self.low > WRITTEN else None
        ((pattern, wanted),) = self.patterns
        if not wanted:
            return None
        node = pattern_node(pattern)
        return counted_part(node, self.low, self.high) if is_long(node) or self.low or self.high is not None else None

    def node(self) -> Node | None:
        """An expression for the characters, written directly where that is possible; None: take the automaton."""
        if self.allowed is not None or self.excluded:
            return None
        if not self.patterns:
            high = -1 if self.high is None else self.high
            return Repeat(Chars(charset.ANY), self.low, high)
        if len(self.patterns) == 1 and not self.low and self.high is None:
            ((pattern, wanted),) = self.patterns
            return pattern_node(pattern) if wanted else None
        return None


def pattern_node(source: str) -> Node:
    """What a whole string is that an expression is found in; raises `RegexError`."""
    options: list[Node] = []
    for start, content, end in alternatives(parse(source)):
        before, after = ((), (_ANYTHING,))[not start], ((), (_ANYTHING,))[not end]
        options.append(Concat((*before, content, *after)))
    return options[0] if len(options) == 1 else Choice(tuple(options))


@lru_cache(maxsize=256)
def pattern_automaton(source: str) -> Automaton:
    """The strings that an expression is found in. Raises `RegexError` and `TooComplexError`."""
    return automaton.of_node(pattern_node(source))


@lru_cache(maxsize=256)
def _lengths(low: int, high: int | None) -> Automaton:
    if max(low, high or 0) > MAX_COUNTED_LENGTH:
        raise TooComplexError(f"a length above {MAX_COUNTED_LENGTH} beside a pattern")
    return automaton.of_node(Repeat(Chars(charset.ANY), low, -1 if high is None else high))


def forget() -> None:
    """Drop what was kept of earlier patterns and lengths."""
    pattern_automaton.cache_clear()
    _lengths.cache_clear()
