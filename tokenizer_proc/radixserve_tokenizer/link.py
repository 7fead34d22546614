"""The conversation with the runtime: what it is known to hold, what is in flight, and what to say after it restarted.

Pure state: the socket lives in `server.py`, which moves frames between it and `take_outgoing` / the `on_...` methods.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from radixserve_runtime import protocol as runtime
from radixserve_tokenizer.programs.log import EMPTY_MARK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.programs.log import TokenLog

logger = logging.getLogger(__name__)

LinkState: TypeAlias = Literal["loading", "ready", "down"]

_PING_S = 1.0
_HELLO_AGAIN_S = 2.0
_MAX_RESENDS = 4
_MAX_SENT_GRAMMARS = 4096


@dataclass(slots=True)
class Request:
    """A generation or scoring that the runtime has not finished. `message` has an empty base; the link fills it in."""

    message: runtime.Generate | runtime.Score
    log: TokenLog
    """The branch's log; it must not change while the request is in flight."""
    resends: int = 0

    @property
    def request_id(self) -> int:
        """The runtime's number for it."""
        return self.message.request_id


class RuntimeLink:
    """One runtime, which may die and come back: what it lacks is sent again from the logs."""

    def __init__(self, hello: runtime.Hello) -> None:
        self._hello = hello
        self._hello_at: float | None = None
        self._ping_at = 0.0
        self._epoch_number = 0
        self._sent_grammars: set[str] = set()
        self._in_flight: dict[int, Request] = {}
        self._outgoing: list[runtime.ToRuntime] = []
        self._weights: dict[str, float] | None = None
        self.state: LinkState = "loading"
        self.epoch = ""
        self.model: runtime.ModelInfo | None = None
        self.stats = runtime.Stats()
        self.rejected = ""
        """Why the runtime refused to serve; empty if it did not."""
        self.last_heard = 0.0
        self.down_since: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the runtime takes requests now."""
        return self.state == "ready"

    @property
    def in_flight(self) -> list[Request]:
        """What has been submitted and not finished, oldest first."""
        return list(self._in_flight.values())

    # ---- what the programs ask for --------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Send a request, now or as soon as the runtime is there."""
        self._in_flight[request.request_id] = request
        if self.is_ready:
            self._send(request)

    def finish(self, request_id: int) -> Request | None:
        """Forget a request that has ended; None if it was not in flight."""
        return self._in_flight.pop(request_id, None)

    def cancel(self, request_id: int) -> bool:
        """Stop a request; whether the runtime was told, and will say what it cost. All else that it says of it is to be ignored."""
        if self._in_flight.pop(request_id, None) is None or not self.is_ready:
            return False
        last = self._outgoing[-1] if self._outgoing else None
        if isinstance(last, runtime.Cancel):
            self._outgoing[-1] = runtime.Cancel(request_ids=(*last.request_ids, request_id))
        else:
            self._outgoing.append(runtime.Cancel(request_ids=(request_id,)))
        return True

    def fork(self, parent_id: int, log: TokenLog, children: Mapping[int, TokenLog]) -> None:
        """Give the runtime the children of a branch, so that each of them need send only its own tokens."""
        if not self.is_ready or not len(log) or not children:
            return
        self._outgoing.append(runtime.Fork(parent_id=parent_id, child_ids=tuple(children), base=self._base(log)))
        self._told(log)
        for child in children.values():
            self._told(child)

    def drop(self, branches: Mapping[int, TokenLog]) -> None:
        """Let the runtime forget branches."""
        known = tuple(branch_id for branch_id, log in branches.items() if log.known_epoch == self._epoch_number)
        if not known or not self.is_ready:
            return
        last = self._outgoing[-1] if self._outgoing else None
        if isinstance(last, runtime.Drop):
            self._outgoing[-1] = runtime.Drop(branch_ids=(*last.branch_ids, *known))
        else:
            self._outgoing.append(runtime.Drop(branch_ids=known))

    def lease(self, branch_id: int, log: TokenLog, ttl_s: float, owner: runtime.Owner) -> bool:
        """Keep the KV of what a log holds; False without a runtime, which then holds none."""
        if not self.is_ready:
            return False
        self._outgoing.append(runtime.Lease(branch_id=branch_id, base=self._base(log), ttl_s=ttl_s, owner=owner))
        self._told(log)
        return True

    def release(self, branch_id: int) -> None:
        """End a lease."""
        if self.is_ready:
            self._outgoing.append(runtime.Release(branch_id=branch_id))

    def publish(self, prefixes: Sequence[runtime.Publish]) -> None:
        """Have prompts computed that everybody may share."""
        self._outgoing.extend(prefixes)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Tell the runtime of changed weights, now and whenever it has been away."""
        self._weights = dict(weights)
        if self.is_ready:
            self._outgoing.append(runtime.SetWeights(weights=self._weights))

    def reset_cache(self) -> None:
        """Forget all KV that no request uses and no lease keeps."""
        self._outgoing.append(runtime.ResetCache())

    def take_outgoing(self) -> list[runtime.ToRuntime]:
        """What is to be sent now, as one frame."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    # ---- what the runtime says ------------------------------------------------------------------------------------

    def on_ready(self, ready: runtime.Ready, now: float) -> list[Request]:
        """The runtime (or a new one) serves. Returns what was in flight: it knows nothing of it, so submit it again or fail it."""
        self.last_heard = now
        if self.is_ready and ready.epoch == self.epoch:
            return []
        if self.epoch and ready.epoch != self.epoch:
            logger.warning("a new runtime is serving (epoch %s)", ready.epoch)
        self.state, self.epoch, self.model, self.stats = "ready", ready.epoch, ready.model, ready.stats
        self.rejected = ""
        self.down_since = None
        self._epoch_number += 1
        self._sent_grammars.clear()
        self._outgoing.clear()
        if self._weights is not None:
            self._outgoing.append(runtime.SetWeights(weights=self._weights))
        lost = self.in_flight
        self._in_flight.clear()
        for request in lost:
            request.resends = 0
        return lost

    def on_rejected(self, message: str) -> None:
        """The runtime does not serve us."""
        logger.error("the runtime refused the connection: %s", message)
        self.rejected = message

    def on_need_tokens(self, request_id: int) -> bool:
        """Send the whole log of a request's branch; False if that has been tried too often."""
        request = self._in_flight.get(request_id)
        if request is None:
            return True
        request.log.known_epoch = 0
        return self._resend(request)

    def on_need_grammar(self, request_id: int, key: str) -> bool:
        """Send a request again with its grammar; False if that has been tried too often."""
        self._sent_grammars.discard(key)
        request = self._in_flight.get(request_id)
        return request is None or self._resend(request)

    def on_disconnected(self, now: float) -> None:
        """The connection broke: nothing that was sent counts any more; say hello to whoever answers next."""
        if self.state == "ready":
            self.state = "down"
            self.down_since = now
            logger.warning("the runtime is gone; %d requests in flight", len(self._in_flight))
        self._outgoing.clear()
        self._hello_at = None

    def hello_due(self, now: float) -> runtime.Hello | None:
        """The greeting to try now, alone in its frame; tell `hello_sent` if it went out. None while the runtime serves."""
        if self.is_ready or (self._hello_at is not None and now - self._hello_at < _HELLO_AGAIN_S):
            return None
        return self._hello

    def hello_sent(self, now: float) -> None:
        """The greeting is on its way."""
        self._hello_at = now

    def tick(self, now: float) -> None:
        """Keep the connection alive."""
        if self.is_ready and now - self._ping_at >= _PING_S:
            self._ping_at = now
            self._outgoing.append(runtime.Ping())

    # ---- messages -------------------------------------------------------------------------------------------------

    def _resend(self, request: Request) -> bool:
        request.resends += 1
        if request.resends > _MAX_RESENDS:
            return False
        if self.is_ready:
            self._send(request)
        return True

    def _send(self, request: Request) -> None:
        message = request.message
        base = self._base(request.log)
        if isinstance(message, runtime.Generate) and message.grammar is not None:
            grammar = message.grammar
            if grammar.key in self._sent_grammars:
                grammar = runtime.GrammarRef(key=grammar.key)
            elif len(self._sent_grammars) >= _MAX_SENT_GRAMMARS:
                self._sent_grammars.clear()  # to send one again does no harm
            self._sent_grammars.add(grammar.key)
            self._outgoing.append(msgspec.structs.replace(message, base=base, grammar=grammar))
        else:
            self._outgoing.append(msgspec.structs.replace(message, base=base))
        self._told(request.log)

    def _base(self, log: TokenLog) -> runtime.Base:
        known = log.known if log.known_epoch == self._epoch_number else EMPTY_MARK
        return runtime.Base(length=known.length, hash=known.hash, new_ids=log.ids_from(known.length))

    def _told(self, log: TokenLog) -> None:
        log.known, log.known_epoch = log.mark(), self._epoch_number
