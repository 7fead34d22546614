"""Stop strings over the bytes of an output, token by token (Aho and Corasick 1975)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class StopResult:
    """What one more token did."""

    hold_bytes: int = 0
    """The last bytes of the output that may still turn out to begin a stop string."""
    stop: bytes = b""
    """The stop string that matched; empty: none."""
    cut_bytes: int = 0
    """After a match: bytes of the output from the start of the stop string to the end."""

    @property
    def matched(self) -> bool:
        """Whether the output is to end here."""
        return bool(self.stop)


_NOTHING = StopResult()


class StopMatcher:
    """Finds the stop string that ends first (of several that end there, the one that starts first), over output alone.

    Costs amortised constant time a byte, whatever the number and length of the stop strings.
    """

    def __init__(self, stop: tuple[bytes, ...], vocabulary: Sequence[bytes]) -> None:
        if any(not string for string in stop):
            raise ValueError("a stop string must not be empty")
        self._vocabulary = vocabulary
        self._node = 0
        self._children: list[dict[int, int]] = [{}]
        self._fail: list[int] = [0]
        self._hold: list[int] = [0]
        self._match: list[bytes] = [b""]
        """The longest stop string that ends at this node."""
        depth = [0]
        for string in stop:
            self._insert(string, depth)
        self._link(depth)

    def _insert(self, string: bytes, depth: list[int]) -> None:
        node = 0
        for byte in string:
            child = self._children[node].get(byte)
            if child is None:
                child = len(self._children)
                self._children[node][byte] = child
                self._children.append({})
                self._fail.append(0)
                self._hold.append(0)
                self._match.append(b"")
                depth.append(depth[node] + 1)
            node = child
        self._match[node] = string

    def _link(self, depth: list[int]) -> None:
        """Failure links, breadth first: a node's link is shallower, so it is complete when it is needed."""
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            fail = self._fail[node]
            # A node without children is no proper prefix of anything: only its longest suffix may go on.
            self._hold[node] = depth[node] if self._children[node] else self._hold[fail]
            self._match[node] = self._match[node] or self._match[fail]
            for byte, child in self._children[node].items():
                self._fail[child] = self._step(fail, byte)
                queue.append(child)

    def _step(self, node: int, byte: int) -> int:
        while node and byte not in self._children[node]:
            node = self._fail[node]
        return self._children[node].get(byte, 0)

    def feed(self, token_id: int, *, may_end: bool = True) -> StopResult:
        """The output grew by this token. Without `may_end` (before `min_tokens`) a match that ends here does not count."""
        if len(self._children) == 1:
            return _NOTHING
        data = self._vocabulary[token_id] if token_id < len(self._vocabulary) else b""
        node = self._node
        for place, byte in enumerate(data, start=1):
            node = self._step(node, byte)
            match = self._match[node]
            if match and may_end:
                self._node = node
                return StopResult(stop=match, cut_bytes=len(match) + len(data) - place)
        self._node = node
        hold = self._hold[node]
        return StopResult(hold_bytes=hold) if hold else _NOTHING
