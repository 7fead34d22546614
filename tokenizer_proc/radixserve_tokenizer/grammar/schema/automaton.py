"""Deterministic automata over code points: the languages of strings and numerals, closed under and, or and not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from radixserve_tokenizer.grammar import charset
from radixserve_tokenizer.grammar.charset import CharSet
from radixserve_tokenizer.grammar.regex import Anchor, Chars, Choice, Concat, Node, Repeat
from radixserve_tokenizer.grammar.schema.errors import TooComplexError
from radixserve_tokenizer.grammar.schema.work import spend

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

MAX_STATES = 4000

#: Of a state: (first, last code point, target), disjoint and ascending. Where no edge leads, the word is not in the language.
Edge: TypeAlias = tuple[int, int, int]
_Edges: TypeAlias = tuple[tuple[Edge, ...], ...]


@dataclass(frozen=True, eq=False)
class Automaton:
    """State 0 is the start. Made by the functions below, which leave no state from which nothing can be accepted (save the start)."""

    edges: tuple[tuple[Edge, ...], ...]
    accepting: frozenset[int]

    @property
    def is_empty(self) -> bool:
        """No word at all."""
        return not self.accepting

    def accepts(self, word: str) -> bool:
        """Whether a word is in the language."""
        state = 0
        for char in word:
            code = ord(char)
            target = next((to for first, last, to in self.edges[state] if first <= code <= last), None)
            if target is None:
                return False
            state = target
        return state in self.accepting

    @cached_property
    def complement(self) -> Automaton:
        """All other words (over characters: no surrogates)."""
        dead = len(self.edges)
        edges = [(*found, *((first, last, dead) for first, last in _gaps(found))) for found in self.edges]
        edges.append(tuple((first, last, dead) for first, last in charset.ANY.ranges))
        return _tidy(edges, frozenset(range(dead + 1)) - self.accepting)

    def __and__(self, other: Automaton) -> Automaton:
        return _product(self, other)

    def __or__(self, other: Automaton) -> Automaton:
        return (self.complement & other.complement).complement


def _gaps(edges: tuple[Edge, ...]) -> tuple[tuple[int, int], ...]:
    return charset.ANY.without(CharSet.of((first, last) for first, last, _ in edges)).ranges


def _product(one: Automaton, two: Automaton) -> Automaton:
    def step(pair: tuple[int, int]) -> Iterable[tuple[int, int, tuple[int, int]]]:
        spend(len(one.edges[pair[0]]) * len(two.edges[pair[1]]) // 4)
        for first, last, left in one.edges[pair[0]]:
            for low, high, right in two.edges[pair[1]]:
                if max(first, low) <= min(last, high):
                    yield max(first, low), min(last, high), (left, right)

    return explore((0, 0), step, lambda pair: pair[0] in one.accepting and pair[1] in two.accepting)


def explore(
    start: Hashable,
    step: Callable[..., Iterable[tuple[int, int, Hashable]]],
    accepts: Callable[..., bool],
) -> Automaton:
    """The automaton of whatever states `step` leads to; its edges out of one state must not overlap."""
    numbers: dict[Hashable, int] = {start: 0}
    states = [start]
    edges: list[tuple[Edge, ...]] = []
    for state in states:  # grows as it goes
        found: list[Edge] = []
        for first, last, target in step(state):
            number = numbers.setdefault(target, len(numbers))
            if number == len(states):
                states.append(target)
                if number >= MAX_STATES:
                    raise TooComplexError(f"a text needs more than {MAX_STATES} states")
            found.append((first, last, number))
        spend(1 + len(found))
        edges.append(tuple(sorted(found)))
    return _tidy(edges, frozenset(numbers[state] for state in states if accepts(state)))


def _tidy(edges: list[tuple[Edge, ...]], accepting: frozenset[int]) -> Automaton:
    """Without states that are not reached or lead nowhere, and with equivalent ones merged."""
    distances = _distances(edges, accepting)
    edges = [tuple(edge for edge in found if edge[2] in distances) for found in edges]
    classes = _classes(edges, [distances.get(state, -1) for state in range(len(edges))])
    order: dict[int, int] = {classes[0]: 0}
    members = [0]
    merged: list[tuple[Edge, ...]] = []
    for member in members:  # grows as it goes
        found: list[Edge] = []
        for first, last, target in edges[member]:
            kind = classes[target]
            if kind not in order:
                order[kind] = len(order)
                members.append(target)
            found.append((first, last, order[kind]))
        merged.append(_joined(found))
    return Automaton(tuple(merged), frozenset(order[classes[member]] for member in members if member in accepting))


def _distances(edges: list[tuple[Edge, ...]], accepting: frozenset[int]) -> dict[int, int]:
    """How many characters from each state to the end of a word, for those from which one ends."""
    sources: dict[int, list[int]] = {}
    for state, found in enumerate(edges):
        for _, _, target in found:
            sources.setdefault(target, []).append(state)
    distances, pending = dict.fromkeys(accepting, 0), list(accepting)
    for target in pending:  # grows as it goes
        for source in sources.get(target, ()):
            if source not in distances:
                distances[source] = distances[target] + 1
                pending.append(source)
    return distances


def _classes(edges: list[tuple[Edge, ...]], distances: list[int]) -> list[int]:
    """Moore's refinement: states that no word tells apart get one number. From unequal distances to the end it takes few rounds,
    where it would take as many as a row is long.
    """
    classes = distances
    count = len(set(classes))
    size = sum(map(len, edges)) + len(edges)
    while True:
        spend(size)
        names: dict[tuple[int, tuple[Edge, ...]], int] = {}
        refined = [
            names.setdefault((classes[state], _joined([(first, last, classes[to]) for first, last, to in found])), len(names))
            for state, found in enumerate(edges)
        ]
        if len(names) == count:
            return refined
        classes, count = refined, len(names)


def _joined(edges: list[Edge]) -> tuple[Edge, ...]:
    """Neighbouring ranges with one target as one range."""
    merged: list[Edge] = []
    for first, last, target in sorted(edges):
        if merged and merged[-1][2] == target and merged[-1][1] + 1 == first:
            merged[-1] = (merged[-1][0], last, target)
        else:
            merged.append((first, last, target))
    return tuple(merged)


# ---- from expressions -------------------------------------------------------------------------------------------


class _Nfa:
    """Thompson's construction."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[CharSet, int]]] = []
        self.free: list[list[int]] = []

    def state(self) -> int:
        if len(self.edges) >= 4 * MAX_STATES:
            raise TooComplexError(f"an expression needs more than {4 * MAX_STATES} states")
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1

    def add(self, node: Node, start: int) -> int:
        """Add the node after `start`; the state where it ends."""
        match node:
            case Chars(found):
                end = self.state()
                self.edges[start].append((found, end))
                return end
            case Concat(parts):
                for part in parts:
                    start = self.add(part, start)
                return start
            case Choice(options):
                end = self.state()
                for option in options:
                    self.free[self.add(option, self._fresh(start))].append(end)
                return end
            case Repeat(inner, low, high):
                return self._repeat(inner, low, high, start)
            case Anchor():
                raise AssertionError("anchors are taken off before")

    def _fresh(self, start: int) -> int:
        state = self.state()
        self.free[start].append(state)
        return state

    def _repeat(self, inner: Node, low: int, high: int, start: int) -> int:
        for _ in range(low):
            start = self.add(inner, start)
        end = self.state()
        if high < 0:
            loop = self._fresh(start)
            self.free[self.add(inner, loop)].append(loop)
            self.free[loop].append(end)
            return end
        self.free[start].append(end)
        for _ in range(high - low):
            start = self.add(inner, start)
            self.free[start].append(end)
        return end

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        found, pending = set(states), list(states)
        while pending:
            for target in self.free[pending.pop()]:
                if target not in found:
                    found.add(target)
                    pending.append(target)
        return frozenset(found)


def of_node(node: Node) -> Automaton:
    """The words that match an expression as a whole."""
    nfa = _Nfa()
    start = nfa.state()
    end = nfa.add(node, start)

    def step(states: frozenset[int]) -> Iterable[tuple[int, int, frozenset[int]]]:
        ranges = [(first, last, to) for state in states for found, to in nfa.edges[state] for first, last in found.ranges]
        cuts = sorted({first for first, _, _ in ranges} | {last + 1 for _, last, _ in ranges})
        spend(len(states) + len(cuts) * len(ranges) // 4)
        for low, high in pairwise(cuts):
            targets = {to for first, last, to in ranges if first <= low and high - 1 <= last}
            if targets:
                yield low, high - 1, nfa.closure(targets)

    return explore(nfa.closure([start]), step, lambda states: end in states)


def of_words(words: Iterable[str]) -> Automaton:
    """These words and no others."""
    tree: list[dict[int, int]] = [{}]
    ends: set[int] = set()
    for word in words:
        state = 0
        for char in word:
            target = tree[state].get(ord(char))
            if target is None:
                target = tree[state][ord(char)] = len(tree)
                tree.append({})
                if target >= 4 * MAX_STATES:
                    raise TooComplexError("too many texts")
            state = target
        ends.add(state)
    return _tidy([tuple(sorted((code, code, to) for code, to in found.items())) for found in tree], frozenset(ends))


ANYTHING = Automaton((tuple((first, last, 0) for first, last in charset.ANY.ranges),), frozenset({0}))
NOTHING = Automaton(((),), frozenset())


# ---- to expressions ---------------------------------------------------------------------------------------------


def to_node(automaton: Automaton, max_size: int = 4000) -> Node | None:
    """An expression for the language, by eliminating states one after another; None where it would be larger than `max_size`."""
    end = len(automaton.edges)
    if end > max_size:
        return None  # each state's edges stand in the expression at least once
    graph: dict[int, dict[int, Node]] = {state: {} for state in range(-1, end + 1)}
    for state, found in enumerate(automaton.edges):
        by_target: dict[int, list[tuple[int, int]]] = {}
        for first, last, target in found:
            by_target.setdefault(target, []).append((first, last))
        for target, ranges in by_target.items():
            graph[state][target] = Chars(CharSet.of(ranges))
    for state in automaton.accepting:
        graph[state][end] = Concat(())
    graph[-1][0] = Concat(())
    left = set(range(end))
    while left:
        state = min(left, key=lambda one: _degree(graph, one))
        left.discard(state)
        if not _eliminate(graph, state, max_size):
            return None
    return graph[-1].get(end, Choice(()))


def _degree(graph: dict[int, dict[int, Node]], state: int) -> int:
    into = sum(state in targets for source, targets in graph.items() if source != state)
    return into * (len(graph[state]) - (state in graph[state]))


def _eliminate(graph: dict[int, dict[int, Node]], state: int, max_size: int) -> bool:
    outgoing = graph.pop(state)
    loop = outgoing.pop(state, None)
    middle: tuple[Node, ...] = () if loop is None else (Repeat(loop, 0, -1),)
    for targets in graph.values():
        into = targets.pop(state, None)
        if into is None:
            continue
        for target, out in outgoing.items():
            path = _concat((into, *middle, out))
            targets[target] = path if target not in targets else _choice(targets[target], path)
            if _size(targets[target]) > max_size:
                return False
    return True


def _concat(parts: tuple[Node, ...]) -> Node:
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, Concat) else (part,))]
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def _choice(one: Node, two: Node) -> Node:
    if isinstance(one, Chars) and isinstance(two, Chars):
        return Chars(one.set | two.set)
    if one == two:
        return one
    options = [inner for node in (one, two) for inner in (node.options if isinstance(node, Choice) else (node,))]
    return Choice(tuple(options))


def _size(node: Node) -> int:
    match node:
        case Concat(parts):
            return 1 + sum(map(_size, parts))
        case Choice(options):
            return 1 + sum(map(_size, options))
        case Repeat(inner, _, _):
            return 1 + _size(inner)
        case Chars() | Anchor():
            return 1
