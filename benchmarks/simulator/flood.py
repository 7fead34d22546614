"""Traffic that shares nothing and never ends, to press on the cache while programs run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .draws import unit
from .numbering import Numbering
from .sessions import Request, Session
from .workload import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .numbering import Ids
    from .settings import Flood, Machine

FLOOD_TENANT = "flood"


def flood_request(flood: Flood) -> Request:
    """The prompt that is sent again and again, with other tokens each time."""
    return Request((), flood.prompt_tokens, flood.output_tokens, 0.0, flood.prompt_tokens)


def flood_programs(flood: Flood, machine: Machine, batch: float, ids: Ids, seed: int) -> Iterator[Program]:
    """One request after the other, without end, as a Poisson process of `flood.load` of the machine."""
    request = flood_request(flood)
    rate = flood.load / machine.cost.request_s(request, batch, machine.max_batch_tokens)
    session = Session((((request,),),), None, 0, 0)
    number, time_s = 0, 0.0
    while True:
        number += 1
        time_s -= math.log1p(-unit(seed, 4, number)) / rate
        # Negative numbers: the trace's programs have the others.
        yield Program(-number, session, FLOOD_TENANT, flood.priority, time_s, Numbering(ids, 0), 0, -number)
