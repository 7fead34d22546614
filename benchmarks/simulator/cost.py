"""How long a step takes in the simulation, and the load that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_runtime.scheduler.plan import Chunk

    from .sessions import Request, Trace


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step = base + tokens * token + attention pairs * pair. A pair is one query token with one key token."""

    base_s: float
    token_s: float
    pair_s: float

    def __post_init__(self) -> None:
        if self.base_s < 0 or self.token_s <= 0 or self.pair_s < 0:
            raise ValueError("a step's cost can't be negative, and a token must cost something or virtual time would stand still")

    def step_s(self, chunks: Iterable[Chunk]) -> float:
        """Seconds of a step with these chunks."""
        tokens, pairs = 0, 0.0
        for chunk in chunks:
            count = chunk.count
            tokens += count
            pairs += count * (chunk.start + (count + 1) / 2)
        return self.base_s + self.token_s * tokens + self.pair_s * pairs

    def request_s(self, request: Request, batch: float, max_batch_tokens: int) -> float:
        """Seconds of machine time that a request takes with `batch` sequences in each step, if the cache has all that it could have."""
        new, out, prompt = request.num_new_tokens, request.num_output_tokens - 1, request.num_prompt_tokens
        steps = out / batch + new / max_batch_tokens
        pairs = new * (prompt - (new - 1) / 2) + out * (prompt + (out + 1) / 2)
        return self.base_s * steps + self.token_s * (new + out) + self.pair_s * pairs


#: `cpu`: about SmolLM2-135M on two cores (a decode step of 16 takes 18 ms, a prefill token 0.7 ms). `gpu`: the shape of an
#: 8-billion-weight model on a large GPU (weights read in 7 ms, 20,000 prefill tokens a second), assumed and not measured.
PRESETS = {
    "cpu": StepCost(6.8e-3, 0.7e-3, 1e-7),
    "gpu": StepCost(7e-3, 50e-6, 2e-9),
}


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the machine could do of a trace: an upper bound, as it assumes full batches and a cache that never evicts."""

    sessions_per_s: float
    requests_per_s: float
    batch: float
    """Sequences a step that were assumed: the slots, or what fits the pool if that is less."""
    num_sessions: int
    num_requests: int
    mean_prompt_tokens: float
    mean_new_tokens: float
    mean_output_tokens: float
    last_start_s: float
    """When the trace's last session starts; 0 where sessions have no times."""


def capacity_of(trace: Trace, cost: StepCost, max_running: int, max_batch_tokens: int, kv_tokens: int) -> Capacity:
    """Reads the trace once. Sessions a second = 1 / mean seconds of machine time of a session."""
    prompts = news = outputs = contexts = num_requests = num_sessions = 0
    last_start_s = 0.0
    for session in trace.sessions():
        num_sessions += 1
        last_start_s = session.start_s or last_start_s
        for request in session.requests():
            num_requests += 1
            prompts += request.num_prompt_tokens
            news += request.num_new_tokens
            outputs += request.num_output_tokens
            contexts += request.num_prompt_tokens + request.num_output_tokens
    if not num_requests:
        raise ValueError("no request of the trace fits: raise --kv-tokens or --max-context, or lower --scale-length")
    batch = max(1.0, min(max_running, max_batch_tokens, kv_tokens / (contexts / num_requests)))
    work_s = sum(
        cost.request_s(request, batch, max_batch_tokens) for session in trace.sessions() for request in session.requests()
    )
    return Capacity(
        sessions_per_s=num_sessions / work_s,
        requests_per_s=num_requests / work_s,
        batch=batch,
        num_sessions=num_sessions,
        num_requests=num_requests,
        mean_prompt_tokens=prompts / num_requests,
        mean_new_tokens=news / num_requests,
        mean_output_tokens=outputs / num_requests,
        last_start_s=last_start_s,
    )
