"""The loop of the runtime process."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from radixserve_runtime.protocol import Heartbeat

if TYPE_CHECKING:
    import threading

    from radixserve_runtime.engine.core import EngineCore
    from radixserve_runtime.engine.transport import Transport

_IDLE_S = 0.5


def run_loop(core: EngineCore, transport: Transport, stop: threading.Event) -> None:
    """Receive, step, emit, until `stop` is set."""
    # What loading made lives for ever: the collector need not look at it again in the middle of a step.
    gc.collect()
    gc.freeze()
    while not stop.is_set():
        for message in transport.receive(_patience_s(core)):
            core.handle(message)
        stepped = not transport.congested and core.step()
        events = core.take_events()
        if events and not core.has_work:
            events.append(Heartbeat(stats=core.stats()))  # so that an idle engine is seen to be idle at once
        transport.send(events)
        if core.has_work and not stepped and core.next_deadline_s is None:
            time.sleep(0.001)  # a full peer, or work that waits for something else: look again soon


def _patience_s(core: EngineCore) -> float:
    """How long `receive` may wait for a first message."""
    if not core.has_work:
        return _IDLE_S
    deadline = core.next_deadline_s
    return 0.0 if deadline is None else min(_IDLE_S, max(0.0, deadline - time.monotonic()))
