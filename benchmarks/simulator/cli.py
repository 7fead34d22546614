"""The command line of the simulator."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cost import PRESETS, StepCost
from .plot import svg
from .report import table, waiting_table, workload_text
from .run import Study
from .scaling import TraceOptions
from .settings import VARIANTS, Flood, Machine, Settings

if TYPE_CHECKING:
    from typing import Protocol

    from .report import Result
    from .settings import Variant

    class Group(Protocol):
        """What is needed of argparse's group, whose class has no public name."""

        def add_argument(self, *names: str, **options: Any) -> Any:
            """As argparse has it."""
            ...


_DESCRIPTION = """Replay a recorded trace through the real scheduler and radix cache with a virtual clock and a cost model in
place of the model, for one or more policies, and compare service, waiting and hit rate. Forms of traces: agent sessions, conversations
by hash ids, arrivals as CSV (see benchmarks/simulator/traces.py)."""


def parser() -> argparse.ArgumentParser:
    """All options."""
    options = argparse.ArgumentParser(
        prog="simulate.py", description=_DESCRIPTION, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    options.add_argument("--trace", type=Path, required=True, help="file to replay")
    options.add_argument(
        "--policy",
        default="fcfs,lpm,vtc,dlpm",
        help=f"some of {', '.join(VARIANTS)}; each is run on the same workload. flat: dlpm without levels; srpt: knows what every program has left",
    )
    options.add_argument(
        "--requests",
        type=int,
        default=10_000,
        help="about so many; the trace is repeated, with other token ids, until there are as many",
    )
    options.add_argument("--load", type=float, default=1.0, help="arrivals as a multiple of the computed capacity")
    options.add_argument("--seed", type=int, default=0, help="of arrivals, tenants and classes")
    _add_trace(options.add_argument_group("trace"))
    _add_tenants(options.add_argument_group("tenants"))
    _add_machine(options.add_argument_group("machine"))
    _add_pressure(options.add_argument_group("pressure on the cache"))
    output = options.add_argument_group("output")
    output.add_argument("--json", type=Path, help="write everything to this file")
    output.add_argument("--plot", type=Path, help="write charts to this SVG file")
    return options


def _add_trace(group: Group) -> None:
    group.add_argument(
        "--scale-length", type=float, default=1 / 16, help="multiply all lengths (a block stays a whole number of tokens)"
    )
    group.add_argument("--max-think", type=float, default=60.0, help="cut pauses to so many seconds")
    group.add_argument("--think", type=float, default=None, help="make all pauses so many seconds")
    group.add_argument(
        "--max-context", type=int, default=0, help="end sessions before a request of more tokens (0: the pool's size)"
    )
    group.add_argument(
        "--no-shared-tools",
        action="store_true",
        help="agent sessions share nothing; otherwise those of one tenant with equally long tool definitions share these",
    )


def _add_tenants(group: Group) -> None:
    group.add_argument("--tenants", type=int, default=1, help="how many")
    group.add_argument("--zipf", type=float, default=1.1, help="a session is the k-th tenant's in proportion to 1 / k^ZIPF")
    group.add_argument("--weights", default="1", help="of the tenants, over and over, as in 3,1")
    group.add_argument("--class-mix", default="standard:1", help="shares of the classes, as in interactive:1,background:2")


def _add_machine(group: Group) -> None:
    defaults = Machine()
    group.add_argument(
        "--cost", default="cpu", help=f"{', '.join(PRESETS)}, or BASE,TOKEN,PAIR: seconds of a step, a token, an attention pair"
    )
    group.add_argument("--kv-tokens", type=int, default=defaults.kv_tokens, help="size of the pool")
    group.add_argument("--page-size", type=int, default=defaults.page_size_tokens, help="tokens of a page")
    group.add_argument("--max-running", type=int, default=defaults.max_running, help="sequences of a step")
    group.add_argument("--max-batch-tokens", type=int, default=defaults.max_batch_tokens, help="tokens of a step")
    group.add_argument("--itl-target-ms", type=float, default=0.0, help="bound on a step that mixes prefill beside decodes")
    group.add_argument(
        "--ageing", type=float, default=defaults.ageing_s, help="seconds after which a waiting request isn't passed over"
    )
    group.add_argument("--quantum", type=float, default=defaults.quantum, help="charge units of a tenant's turn")
    group.add_argument("--level-unit", type=float, default=defaults.level_unit, help="charge units of a program's first level")


def _add_pressure(group: Group) -> None:
    group.add_argument(
        "--leases",
        choices=("off", "on", "both"),
        default="off",
        help="whether a pause leases the branch's KV; both: run each policy with and without",
    )
    group.add_argument("--lease-ttl", type=float, default=60.0, help="seconds of a lease")
    group.add_argument("--flood", type=float, default=0.0, help="load of requests that share nothing, from a tenant of their own")
    group.add_argument("--flood-tokens", type=int, default=1000, help="tokens of such a prompt")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Raises `ValueError` for what can't be."""
    if arguments.load <= 0 or arguments.requests < 1 or arguments.flood < 0:
        raise ValueError("--load must be positive, --requests at least 1, and --flood not negative")
    max_context = min(arguments.max_context or arguments.kv_tokens, arguments.kv_tokens)
    return Settings(
        trace=arguments.trace,
        options=TraceOptions(
            arguments.scale_length, arguments.max_think, arguments.think, not arguments.no_shared_tools, max_context
        ),
        machine=Machine(
            cost=_cost(arguments.cost),
            kv_tokens=arguments.kv_tokens,
            page_size_tokens=arguments.page_size,
            max_running=arguments.max_running,
            max_batch_tokens=arguments.max_batch_tokens,
            ageing_s=arguments.ageing,
            quantum=arguments.quantum,
            level_unit=arguments.level_unit,
            itl_target_ms=arguments.itl_target_ms,
        ),
        load=arguments.load,
        num_requests=arguments.requests,
        num_tenants=arguments.tenants,
        zipf=arguments.zipf,
        weights=tuple(float(part) for part in arguments.weights.split(",")),
        class_mix=arguments.class_mix,
        seed=arguments.seed,
        flood=Flood(arguments.flood, arguments.flood_tokens),
        lease_ttl_s=arguments.lease_ttl,
    )


def _cost(text: str) -> StepCost:
    if text in PRESETS:
        return PRESETS[text]
    parts = [float(part) for part in text.split(",")]
    if len(parts) != 3:
        raise ValueError(f"--cost is {', '.join(PRESETS)}, or three numbers, not {text!r}")
    return StepCost(*parts)


def _policies(text: str) -> list[Variant]:
    names = text.split(",")
    for name in names:
        if name not in VARIANTS:
            raise ValueError(f"--policy knows {', '.join(VARIANTS)}, not {name!r}")
    return [policy for policy in VARIANTS if policy in names]


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says; exit status 2 for what it can't mean."""
    options = parser()
    parsed = options.parse_args(arguments)
    try:
        settings, policies = settings_of(parsed), _policies(parsed.policy)
        study = Study.of(settings)
    except (OSError, ValueError) as error:
        options.error(str(error))
    print(workload_text(study.capacity, settings.load, study.trace.scale, study.tenants.description), flush=True)
    results: list[Result] = []
    for policy in policies:
        for leases in {"off": (False,), "on": (True,), "both": (False, True)}[parsed.leases]:
            result = study.run(policy, leases)
            results.append(result)
            rate = result.num_requests / max(result.cpu_s, 1e-9)
            print(f"{policy}: {result.num_requests} requests of {result.num_programs} programs in {result.num_steps} steps, "
                  f"{result.makespan_s:.0f} s of virtual time, {result.cpu_s:.1f} s of CPU time ({rate:.0f} requests/s)", flush=True)  # fmt: skip
    print(f"\n{table(results)}\n\n{waiting_table(results)}")
    _write(parsed, study, results)
    return 0


def _write(parsed: argparse.Namespace, study: Study, results: list[Result]) -> None:
    if parsed.json:
        said: dict[str, Any] = {name: str(value) if isinstance(value, Path) else value for name, value in vars(parsed).items()}
        document = {
            "arguments": said,
            "workload": workload_text(study.capacity, study.settings.load, study.trace.scale, study.tenants.description),
            "results": [result.as_dict() for result in results],
        }
        parsed.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if parsed.plot:
        parsed.plot.write_text(svg(results), encoding="utf-8")
