"""Who is connected, and the events that wait to be sent to them."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.program import Program
    from radixserve_tokenizer.protocol import Event

#: Ops of this many refused programs a connection are ignored in silence; older ones are answered like those of unknown programs.
_MAX_REFUSED = 4096


@dataclass(slots=True, eq=False)
class Client:
    """One connection. Programs are named by (client, number), so clients can't reach each other's."""

    identity: bytes
    last_heard: float
    curve_key: str | None = None
    """Over TCP: the key that its connection showed."""
    greeted: bool = False
    """It has been welcomed."""
    greeting_due: bool = False
    """It said hello before the model was there."""
    programs: dict[int, Program] = field(default_factory=dict[int, "Program"])
    undecided: dict[Program, None] = field(default_factory=dict["Program", None])
    """Programs that wait for the end of their first frame, to be admitted or refused."""
    streaming: dict[Program, None] = field(default_factory=dict["Program", None])
    """Programs with output that no `Delta` carries yet, and with credits for it."""
    events: list[Event] = field(default_factory=list[Any])
    _told_until: float = -math.inf
    """Before then it is told of no more streamed output, but for what begins."""
    _held_until: float = math.inf
    """When what waits for that has waited for an interval."""
    _refused: OrderedDict[int, None] = field(default_factory=OrderedDict[int, None])

    def collect_deltas(self, now: float, interval_s: float) -> None:
        """Move output that streams into deltas, once an interval; the first of a generation at once.

        All of a client's streams go together, as each time that somebody is woken takes the cores from who computes. So what waits goes
        with whatever comes after the interval, a step's tokens as a rule, and after as long again by itself (`deltas_due`).
        """
        is_due = now >= min(self._told_until, self._held_until)
        streaming, self.streaming = self.streaming, {}
        for program in streaming:
            if is_due or program.begins_to_answer:
                program.collect_deltas(self.events)
            else:
                self.streaming[program] = None
        if is_due:
            self._told_until, self._held_until = now + interval_s, math.inf
        elif self.streaming:
            self._held_until = min(self._held_until, now + interval_s)

    @property
    def deltas_due(self) -> float | None:
        """When there is output to tell it of; None: there is none."""
        return self._held_until if self.streaming and self._held_until < math.inf else None

    def note_refused(self, number: int) -> None:
        """What is sent for this program is to be ignored."""
        self._refused[number] = None
        if len(self._refused) > _MAX_REFUSED:
            self._refused.popitem(last=False)

    def was_refused(self, number: int) -> bool:
        """Whether this program was refused (and not long ago)."""
        return number in self._refused

    def forget_refused(self, number: int) -> None:
        """The number may be used again."""
        self._refused.pop(number, None)
