"""Agent programs over several requests: which belong together, and whose KV is kept between them.

A program that is kept has answered its request and stays open in the engine with a lease, so that its pages are still there when
the client comes back from its tool. It is closed when its time is over, when the next request of its program has begun to
answer, when the engine can't keep it, when its key keeps too many, and when the server stops.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_tokenizer.protocol import Goodbye, LeaseLost, Refused

if TYPE_CHECKING:
    from radixserve.http.bridge import ChannelLike
    from radixserve.http.config import HttpConfig
    from radixserve.http.extension import Extension
    from radixserve_tokenizer.protocol import Event

#: Programs whose parents are remembered.
_MAX_PARENTS = 16_384


@dataclass(eq=False)
class _Kept:
    key: tuple[str, str]
    channel: ChannelLike
    timer: asyncio.TimerHandle


class AgentPrograms:
    """All programs of one server. Used by its event loop alone. Keys are kept as hashes."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._roots: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._kept: dict[str, OrderedDict[str, _Kept]] = {}

    @property
    def num_kept(self) -> int:
        """Programs that are open though no request of theirs runs."""
        return sum(map(len, self._kept.values()))

    def visit(self, api_key: str, extension: Extension) -> Visit | None:
        """A request of a program begins; None if it says nothing of its program."""
        if not extension.program_id and not extension.parent:
            return None
        owner = hashlib.blake2b(api_key.encode(), digest_size=16).hexdigest()
        return Visit(self, owner, extension, self._group(owner, extension), self._of(owner, extension.program_id))

    def keep(self, owner: str, program_id: str, channel: ChannelLike, lease_s: float) -> None:
        """Leave `channel` open for `lease_s` seconds; what the program had open before is closed."""
        self._end(self._of(owner, program_id))
        own = self._kept.setdefault(owner, OrderedDict())
        while len(own) >= self._config.max_leases_per_key:
            self._end(next(iter(own.values())))
        while self.num_kept >= self._config.max_leases:
            self._end(next(iter(max(self._kept.values(), key=len).values())))
        kept = _Kept((owner, program_id), channel, asyncio.get_running_loop().call_later(lease_s, self.end_channel, channel))
        self._kept.setdefault(owner, OrderedDict())[program_id] = kept

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

    def _of(self, owner: str, program_id: str) -> _Kept | None:
        own = self._kept.get(owner)
        return None if own is None else own.get(program_id)

    def _end(self, kept: _Kept | None) -> None:
        if kept is None:
            return
        owner, program_id = kept.key
        own = self._kept[owner]
        if own.get(program_id) is kept:
            del own[program_id]
            if not own:
                del self._kept[owner]
        kept.timer.cancel()
        kept.channel.close()

    def _group(self, owner: str, extension: Extension) -> str:
        """The program at the root: a program and all that it started count as one."""
        own_id, parent = extension.program_id, extension.parent
        known = self._roots.get((owner, own_id)) if own_id else None
        root = self._roots.get((owner, parent), parent) if parent else known or own_id
        if own_id and root != own_id:
            self._roots[owner, own_id] = root
            self._roots.move_to_end((owner, own_id))
            if len(self._roots) > _MAX_PARENTS:
                self._roots.popitem(last=False)
        return root


@dataclass(eq=False)
class Visit:
    """One request of a program."""

    programs: AgentPrograms
    owner: str
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
        self.programs.keep(self.owner, self.extension.program_id, channel, self.extension.lease_s)

    def heard(self, event: Event) -> None:
        """What the engine says of the program that is kept: once there is nothing to keep it is closed."""
        if isinstance(event, (LeaseLost, Goodbye, Refused)) and self._channel is not None:
            self.programs.end_channel(self._channel)
