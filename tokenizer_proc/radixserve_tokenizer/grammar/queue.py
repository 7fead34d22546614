"""Who is compiled for next: tenants get equal shares of the worker's time, each in its own order."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.prepare import Prepared


@dataclass(slots=True, eq=False)
class Job:
    """One grammar that someone waits for."""

    number: int
    tenant: str
    key: str
    """The tenant's name for it: no other tenant's job has it."""
    prepared: Prepared
    tickets: list[int] = field(default_factory=list[int])


class FairQueue:
    """Jobs by tenant. The next one is of the tenant that has had the worker for the least time (start-time fair queueing): a
    tenant whose grammars take seconds holds up another's by one of them at most, not by the whole row.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, OrderedDict[str, Job]] = {}
        """Only tenants that have jobs here."""
        self._used_s: dict[str, float] = {}
        """Time of the worker by tenant; who comes after a pause starts at `_now_s`, so that no one saves time up."""
        self._now_s = 0.0
        self._num_jobs = 0

    def __len__(self) -> int:
        return self._num_jobs

    def push(self, job: Job) -> None:
        """Behind the other jobs of its tenant."""
        if job.tenant not in self._waiting:
            self._waiting[job.tenant] = OrderedDict()
            self._used_s[job.tenant] = max(self._used_s.get(job.tenant, 0.0), self._now_s)
        self._waiting[job.tenant][job.key] = job
        self._num_jobs += 1

    def pop(self) -> Job | None:
        """The next job; None where there is none."""
        if not self._waiting:
            return None
        tenant = min(self._waiting, key=self._used_s.__getitem__)
        self._now_s = self._used_s[tenant]
        job = next(iter(self._waiting[tenant].values()))
        self.remove(job)
        return job

    def charge(self, tenant: str, seconds: float) -> None:
        """The worker was this tenant's for so long. Forgets those who are behind and wait for nothing."""
        self._used_s[tenant] = self._used_s.get(tenant, self._now_s) + seconds
        idle = [name for name, used in self._used_s.items() if used <= self._now_s and name not in self._waiting]
        for name in idle:
            del self._used_s[name]

    def remove(self, job: Job) -> None:
        """Take a job out that waits here."""
        jobs = self._waiting[job.tenant]
        del jobs[job.key]
        self._num_jobs -= 1
        if not jobs:
            del self._waiting[job.tenant]

    def to_give_way(self, tenant: str) -> Job | None:
        """Of a full queue, the job that makes room for one more of this tenant's: the last of the tenant that has most of them;
        None where no one has more than this one would.
        """
        if not self._waiting:
            return None
        largest = max(self._waiting, key=lambda name: len(self._waiting[name]))
        if len(self._waiting[largest]) <= len(self._waiting.get(tenant, ())) + 1:
            return None
        return next(reversed(self._waiting[largest].values()))
