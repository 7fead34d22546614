"""All workloads by name. `p0` and `w1` to `w6` are those of the project's table of peers, with the sizes of that table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.bench.workload import Workload
from radixserve.bench.workloads import agents, plain, structured, trace, tree

if TYPE_CHECKING:
    from radixserve.bench.workload import Part


def _of_requests() -> list[Workload]:
    """Requests that know nothing of each other, or of what they share."""
    return [
        Workload(
            "single",
            "one stream at a time",
            {"": plain.batch},
            {"concurrency": 1, "requests": 8},
            frozenset(("requests", "prompt_tokens", "output_tokens")),
        ),
        Workload(
            "batch",
            "independent prompts, many at a time",
            {"": plain.batch},
            {"requests": 32},
            frozenset(("concurrency", "requests", "prompt_tokens", "output_tokens")),
        ),
        Workload(
            "shared-prefix",
            "chats over one shared system prompt",
            {"": plain.shared_prefix},
            {"requests": 64, "prompt_tokens": 32, "output_tokens": 32},
            frozenset(("concurrency", "requests", "prompt_tokens", "shared_tokens", "output_tokens")),
        ),
        Workload(
            "forks",
            "continuations of one prompt, as requests and as choices of one",
            {"requests": plain.fork_requests, "n": plain.fork_choices},
            {"requests": 2, "prompt_tokens": 1024, "output_tokens": 64, "concurrency": 1},
            frozenset(("requests", "prompt_tokens", "output_tokens", "branches")),
        ),
        Workload(
            "json",
            "a JSON object of six fields, with the schema enforced and without",
            {"constrained": structured.constrained, "plain": structured.unconstrained},
            {"concurrency": 8, "requests": 16, "output_tokens": 96},
            frozenset(("concurrency", "requests", "output_tokens")),
        ),
    ]


def _of_programs() -> list[Workload]:
    """Programs: what is asked next depends on an answer."""
    return [
        Workload(
            "agents",
            "agents of several turns over one preamble",
            {"": agents.agents},
            {"concurrency": 8, "requests": 8, "prompt_tokens": 64, "shared_tokens": 768, "output_tokens": 48},
            frozenset(("concurrency", "requests", "prompt_tokens", "shared_tokens", "output_tokens", "turns")),
        ),
        Workload(
            "tree",
            "tree of thought: thoughts, verdicts, the next level",
            {"": tree.tree},
            {"concurrency": 2, "requests": 4, "prompt_tokens": 512, "output_tokens": 32, "branches": 4},
            frozenset(("concurrency", "requests", "prompt_tokens", "output_tokens", "branches", "depth")),
        ),
        Workload(
            "tenants",
            "agents, chats and questions of several keys",
            {"": agents.tenants},
            {"concurrency": 8, "requests": 24, "prompt_tokens": 64, "shared_tokens": 512, "output_tokens": 32, "turns": 3},
            frozenset(("concurrency", "requests", "prompt_tokens", "shared_tokens", "output_tokens", "turns")),
        ),
        Workload(
            "trace",
            "a recorded trace (--trace FILE)",
            {"": trace.replay},
            {"concurrency": 8, "requests": 16},
            frozenset(("concurrency", "requests", "trace", "scale_length", "scale_output", "scale_time", "max_think_s")),
        ),
        Workload(
            "poisson",
            "agents that arrive at random, whatever runs; for goodput",
            {"": agents.poisson},
            {"requests": 32, "prompt_tokens": 64, "shared_tokens": 768, "output_tokens": 48, "turns": 4},
            frozenset(("rate", "think_s", "requests", "prompt_tokens", "shared_tokens", "output_tokens", "turns")),
            open_arrivals=True,
        ),
    ]


def _fixed(name: str, summary: str, part: Part, **sizes: Any) -> Workload:
    return Workload(name, summary, {"": part}, sizes)


_FORKS: dict[str, Any] = {"requests": 1, "prompt_tokens": 1024, "output_tokens": 64, "branches": 16}


def _of_the_table() -> list[Workload]:
    return [
        _fixed("p0", "cold prefill of 1,024", plain.batch, concurrency=1, requests=4, prompt_tokens=1024, output_tokens=1),
        _fixed("w1", "one stream, 128 in, 128 out", plain.batch, concurrency=1, requests=3, prompt_tokens=128, output_tokens=128),
        _fixed(
            "w2", "16 streams, 128 in, 128 out", plain.batch, concurrency=16, requests=16, prompt_tokens=128, output_tokens=128
        ),
        _fixed(
            "w3",
            "64 chats over one 1,024-token system prompt, 16 at a time",
            plain.shared_prefix,
            concurrency=16,
            requests=64,
            prompt_tokens=32,
            shared_tokens=1024,
            output_tokens=32,
        ),
        _fixed(
            "w4",
            "8 agents x 6 turns over a 768-token preamble",
            agents.agents,
            concurrency=8,
            requests=8,
            prompt_tokens=64,
            shared_tokens=768,
            output_tokens=48,
            turns=6,
        ),
        _fixed("w5a", "one 1,024-token prompt, 16 continuations as requests", plain.fork_requests, **_FORKS, concurrency=16),
        _fixed("w5b", "the same with n=16", plain.fork_choices, **_FORKS, concurrency=1),
        _fixed("w6", "JSON by a schema, 8 at a time", structured.constrained, concurrency=8, requests=16, output_tokens=96),
        _fixed("w6u", "the same without the constraint", structured.unconstrained, concurrency=8, requests=16, output_tokens=96),
    ]


WORKLOADS: dict[str, Workload] = {one.name: one for one in (*_of_requests(), *_of_programs(), *_of_the_table())}
