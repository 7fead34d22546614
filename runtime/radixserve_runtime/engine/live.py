"""The requests under way and their sequences: begun together, and taken out together whatever state they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from radixserve_runtime.engine.requests import Generation, Scoring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_runtime.engine.tenancy import Tenancy
    from radixserve_runtime.scheduler.scheduler import Scheduler
    from radixserve_runtime.scheduler.sequence import Sequence

Request: TypeAlias = Generation | Scoring


class LiveRequests:
    """Requests by number and by sequence. What is in here is in the scheduler, and the other way round."""

    def __init__(self, scheduler: Scheduler, tenancy: Tenancy) -> None:
        self._scheduler = scheduler
        self._tenancy = tenancy
        self._by_id: dict[int, Request] = {}
        self._of_sequence: dict[Sequence, Request] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._by_id

    @property
    def ids(self) -> list[int]:
        """Numbers of all, oldest first."""
        return list(self._by_id)

    @property
    def sequences(self) -> Iterable[Sequence]:
        """Sequences that have not ended."""
        return self._of_sequence

    def get(self, request_id: int) -> Request | None:
        """The request of a number."""
        return self._by_id.get(request_id)

    def of(self, sequence: Sequence) -> Request | None:
        """The request of a sequence; None when it has ended."""
        return self._of_sequence.get(sequence)

    def start(self, request: Request) -> None:
        """Let all of its sequences wait, or none: raises `SequenceTooLongError`."""
        sequences = sequences_of(request)
        for index, sequence in enumerate(sequences):
            try:
                self._scheduler.add(sequence)
            except Exception:
                for other in sequences[:index]:
                    self._scheduler.cancel(other)
                self._tenancy.abandoned(request.message.request_id, sequences)
                raise
        self._by_id[request.message.request_id] = request
        for sequence in sequences:
            self._of_sequence[sequence] = request

    def release(self, request: Request) -> list[Sequence]:
        """Take a request and all its sequences out of the scheduler before their end."""
        sequences = sequences_of(request)
        for sequence in sequences:
            if self._of_sequence.pop(sequence, None) is not None:
                self._scheduler.cancel(sequence)
        self._by_id.pop(request.message.request_id, None)
        self._tenancy.abandoned(request.message.request_id, sequences)
        return sequences

    def finish_sequence(self, sequence: Sequence) -> None:
        """A sequence is at its end; its KV stays in the tree."""
        self._scheduler.finish(sequence)
        del self._of_sequence[sequence]

    def forget(self, request: Request) -> None:
        """All sequences of a request are at their end."""
        del self._by_id[request.message.request_id]


def sequences_of(request: Request) -> list[Sequence]:
    """One for a generation, one an option for a scoring."""
    return request.sequences if isinstance(request, Scoring) else [request.sequence]
