"""Agent programs over several requests: which belong together, and whose KV is kept between them.

A program that is kept has answered its request and stays open in the engine with a lease, so that its pages are still there when
the client comes back from its tool. It is closed when its time is over, when the next request of its program has begun to
answer, when the engine can't keep it, when its tenant keeps too many, and when the server stops.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve.http.parents import Parents
from radixserve_tokenizer.protocol import Goodbye, LeaseLost, Refused

if TYPE_CHECKING:
    from radixserve.http.bridge import ChannelLike
    from radixserve.http.config import HttpConfig
    from radixserve.http.extension import Extension
    from radixserve_tokenizer.protocol import Event


@dataclass(eq=False)
class _Kept:
    key: tuple[str, str]
    channel: ChannelLike
    timer: asyncio.TimerHandle


class AgentPrograms:
    """All programs of one server, each its tenant's. Used by its event loop alone."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._parents = Parents(config.max_parents_per_tenant, config.max_parents)
        self._kept: dict[str, OrderedDict[str, _Kept]] = {}

    @property
    def num_kept(self) -> int:
        """Programs that are open though no request of theirs runs."""
        return sum(map(len, self._kept.values()))

    def visit(self, tenant: str, extension: Extension) -> Visit:
        """A request of a program begins. `tenant` is the engine's word for who asks, never the client's."""
        group = self._parents.root(tenant, extension.program_id, extension.parent)
        return Visit(self, tenant, extension, group, self._of(tenant, extension.program_id))

    def keep(self, tenant: str, program_id: str, channel: ChannelLike, lease_s: float) -> None:
        """Leave `channel` open for `lease_s` seconds; what the program had open before is closed."""
        self._end(self._of(tenant, program_id))
        own = self._kept.setdefault(tenant, OrderedDict())
        while len(own) >= self._config.max_leases_per_tenant:
            self._end(next(iter(own.values())))
        while self.num_kept >= self._config.max_leases:
            self._end(next(iter(max(self._kept.values(), key=len).values())))
        kept = _Kept((tenant, program_id), channel, asyncio.get_running_loop().call_later(lease_s, self.end_channel, channel))
        self._kept.setdefault(tenant, OrderedDict())[program_id] = kept

    def end_channel(self, channel: ChannelLike) -> None:
        """Close a channel that is kept; another one is left alone."""
        for own in self._kept.values():
            for kept in own.values():
                if kept.channel is channel:
                    self._end(kept)
                    return

    def close(self) -> None:
        """Close all."""
        for own in list(self._kept.values()):
            for kept in list(own.values()):
                self._end(kept)

    def _of(self, tenant: str, program_id: str) -> _Kept | None:
        own = self._kept.get(tenant)
        return None if own is None else own.get(program_id)

    def _end(self, kept: _Kept | None) -> None:
        if kept is None:
            return
        tenant, program_id = kept.key
        own = self._kept[tenant]
        if own.get(program_id) is kept:
            del own[program_id]
            if not own:
                del self._kept[tenant]
        kept.timer.cancel()
        kept.channel.close()


@dataclass(eq=False)
class Visit:
    """One request of a program."""

    programs: AgentPrograms
    tenant: str
    extension: Extension
    group: str
    before: _Kept | None
    """What the program's last request left open."""
    _channel: ChannelLike | None = field(default=None, init=False)

    @property
    def keeps(self) -> bool:
        """Whether the program is to stay open after its answer."""
        return self.extension.lease_s > 0

    def begun(self) -> None:
        """The request holds its pages itself now: what was kept for it may go."""
        if self.before is not None:
            self.programs.end_channel(self.before.channel)

    def keep(self, channel: ChannelLike) -> None:
        """The answer is complete; from here on the channel belongs to the agent programs."""
        self._channel = channel
        self.programs.keep(self.tenant, self.extension.program_id, channel, self.extension.lease_s)

    def heard(self, event: Event) -> None:
        """What the engine says of the program that is kept: once there is nothing to keep it is closed."""
        if isinstance(event, (LeaseLost, Goodbye, Refused)) and self._channel is not None:
            self.programs.end_channel(self._channel)
