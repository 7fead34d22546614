"""A program that is taken up again tells what it kept in slices, so that others' events go out between them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.program import Program

#: Told in one turn of the loop, of all programs together; one event alone may be more. Some ten milliseconds.
SLICE_BYTES = 128 << 10
#: Told of one program before it is another's turn.
_TURN_BYTES = 32 << 10
#: What an outcome that is not kept counts as.
_FAILED_BYTES = 256


class Retelling:
    """What one program has to tell again, and what it says meanwhile, which comes after that."""

    def __init__(self, gone: list[wire.Event], kept: list[bytes], lost: list[wire.LeaseLost]) -> None:
        """`gone` stands for outcomes that are not kept, `kept` are encoded, `lost` comes last."""
        self._gone = deque(gone)
        self._kept = deque(kept)
        self._after: deque[wire.Event] = deque(lost)

    def hold(self, event: wire.Event) -> None:
        """The program says this now."""
        self._after.append(event)

    def lost_leases(self) -> list[int]:
        """Branches of whose lost leases nobody has been told yet."""
        return [event.branch for event in self._after if isinstance(event, wire.LeaseLost)]

    def take(self, max_bytes: int) -> tuple[list[wire.Event], int]:
        """The next events, and about how many bytes they are: at least one, and no more than needed to reach `max_bytes`."""
        events: list[wire.Event] = []
        num_bytes = 0
        while self._kept or self._gone:
            if self._gone:
                events.append(self._gone.popleft())
                num_bytes += _FAILED_BYTES
            else:
                frame = self._kept.popleft()
                events.extend(wire.decode_events(frame))
                num_bytes += len(frame)
            if num_bytes >= max_bytes:
                break
        return events, num_bytes

    def rest(self) -> list[wire.Event]:
        """What was said meanwhile, once all else is told."""
        assert self.is_over
        return list(self._after)

    @property
    def is_over(self) -> bool:
        """Whether all that was kept is told."""
        return not self._kept and not self._gone


class Retellings:
    """All programs that tell again; each in turn."""

    def __init__(self) -> None:
        self._programs: deque[Program] = deque()

    def __bool__(self) -> bool:
        return bool(self._programs)

    def begin(self, program: Program, retelling: Retelling) -> None:
        """From now on it tells this, before all else that it says."""
        program.retelling = retelling
        self._programs.append(program)

    def stop(self, program: Program) -> None:
        """Its listener is gone. What was kept is still kept; leases that were lost are noted for the next one."""
        retelling, program.retelling = program.retelling, None
        if retelling is None:
            return
        self._programs.remove(program)
        if program.journal is not None:
            program.journal.note_lost(retelling.lost_leases())

    def tell(self) -> None:
        """A slice for this turn."""
        left = SLICE_BYTES
        while self._programs and left > 0:
            program = self._programs[0]
            self._programs.rotate(-1)
            assert program.retelling is not None
            events, num_bytes = program.retelling.take(min(left, _TURN_BYTES))
            left -= max(num_bytes, 1)
            program.client.events.extend(map(program.numbered, events))
            if program.retelling.is_over:
                program.client.events.extend(map(program.numbered, program.retelling.rest()))
                program.retelling = None
                self._programs.remove(program)
                program.stream_again()
