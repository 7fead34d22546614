"""The simulator on tiny traces of the tests' own: everything ends, adds up, is the same again, and waits as long as it should."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from benchmarks.simulator.charges import Charges
from benchmarks.simulator.clock import VirtualClock
from benchmarks.simulator.loop import Simulation
from benchmarks.simulator.numbering import Ids, Numbering
from benchmarks.simulator.recorder import Recorder
from benchmarks.simulator.run import Study
from benchmarks.simulator.scaling import TraceOptions
from benchmarks.simulator.sessions import starts_with
from benchmarks.simulator.settings import POLICIES, Flood, Machine, Settings
from benchmarks.simulator.tenants import ClassMix, Member, Tenants
from benchmarks.simulator.traces import UnknownTraceError, open_trace
from benchmarks.simulator.waits import AgeingCheck
from radixserve_runtime.cache.pages import PagePool
from radixserve_runtime.cache.radix import RadixCache
from radixserve_runtime.scheduler.config import SchedulerConfig
from radixserve_runtime.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.simulator.loop import Call, Progress
    from benchmarks.simulator.workload import Program
    from radixserve_runtime.scheduler.plan import StepPlan


def request(
    num_tokens: int, out: int, blocks: list[list[int]], think_s: float = 0.0, stop: str = "tool_use"
) -> dict[str, object]:
    return {"t": 0.0, "type": "n", "in": num_tokens, "out": out, "stop": stop, "think_time": think_s, "blocks": blocks}


def write_agents(path: Path) -> Path:
    agents = [
        {"t": 50.0, "type": "subagent", "requests": [request(130, 3, [[10, 11]]), request(200, 3, [[10, 12]], 1.0)]}
        for _ in range(2)
    ]
    sessions = [
        {"id": "a", "block_size": 64, "tool_tokens": 128, "requests": [request(200, 70, [[1, 3]]), request(330, 5, [[1, 5]], 2.0)]},
        {"id": "b", "block_size": 64, "tool_tokens": 128, "requests": [request(150, 4, [[1, 2]]), *agents, {**request(300, 4, [[1, 2], [20, 21]], 40.0), "t": 55.0}]},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(session) + "\n" for session in sessions))
    return path


def write_conversations(path: Path) -> Path:
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 1000, "input_length": 1600, "output_length": 5, "hash_ids": [0, 1, 3, 4]},
        {"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 9]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_arrivals(path: Path) -> Path:
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n2023-11-16 18:17:04.0319600,31,8\n2023-11-16 18:17:06.9799600,64,2\n"
    )
    return path


class Witness:
    """Keeps everything that a simulation tells."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.added: list[tuple[float, Call]] = []
        self.ended: list[tuple[float, Call]] = []
        self.programs_began: list[int] = []
        self.programs_ended: list[int] = []

    def program_began(self, program: Program, now_s: float) -> None:
        self.times.append(now_s)
        self.programs_began.append(program.number)

    def program_ended(self, progress: Progress, now_s: float) -> None:
        self.programs_ended.append(progress.program.number)

    def call_added(self, call: Call, now_s: float) -> None:
        self.times.append(now_s)
        self.added.append((now_s, call))

    def call_ended(self, call: Call, now_s: float) -> None:
        self.times.append(now_s)
        self.ended.append((now_s, call))

    def stepped(self, plan: StepPlan, planned_s: float, now_s: float) -> None:
        assert planned_s < now_s
        self.times.append(now_s)


def settings(path: Path, **changes: object) -> Settings:
    defaults: dict[str, object] = {"machine": Machine(kv_tokens=2048), "num_requests": 30, "num_tenants": 3}
    return Settings(trace=path, **{**defaults, **changes})  # type: ignore[arg-type]


def witnessed(study: Study, policy: str = "fcfs") -> Witness:
    machine = study.settings.machine
    clock, witness = VirtualClock(), Witness()
    pool = PagePool(machine.kv_tokens // machine.page_size_tokens, machine.page_size_tokens)
    scheduler = Scheduler(SchedulerConfig(policy=policy), RadixCache(pool), pool, clock)  # type: ignore[arg-type]
    Simulation(scheduler, clock, machine.cost, study.workload(study.workload.ids()), witness).run()
    assert not scheduler.has_work
    assert pool.num_locked == 0
    return witness


# ---- traces ------------------------------------------------------------------------------------------------------


def test_agent_sessions_are_read_as_stages(tmp_path: Path) -> None:
    first, second = open_trace(write_agents(tmp_path / "a.jsonl"), TraceOptions()).sessions()
    (chain,) = first.stages[0]
    assert [one.num_prompt_tokens for one in chain] == [200, 330]
    assert [one.is_extended for one in chain] == [True, False]
    assert [one.think_s for one in chain] == [0.0, 2.0]
    assert [len(stage) for stage in second.stages] == [1, 2, 1]
    assert second.num_requests == 6
    # The pause that sub-agents filled is what remains of it after them, not the whole.
    assert second.stages[2][0][0].think_s == 5.0


def test_what_is_new_of_a_prompt(tmp_path: Path) -> None:
    first, second = open_trace(write_agents(tmp_path / "a.jsonl"), TraceOptions()).sessions()
    # Two shared blocks are known from the start; then the first prompt with all of its output but the last token.
    assert [one.num_new_tokens for one in first.requests()] == [200 - 128, 330 - 269]
    assert [one.num_new_tokens for one in second.requests()] == [150 - 128, 130, 200 - 132, 2, 200 - 192, 300 - 128]


def test_conversations_are_read(tmp_path: Path) -> None:
    first, second, third = open_trace(write_conversations(tmp_path / "c.jsonl"), TraceOptions(scale_length=0.5)).sessions()
    assert [session.start_s for session in (first, second, third)] == [0.0, 1.0, 3.0]
    assert first.group == second.group != third.group
    (one,), (two,), (three,) = first.requests(), second.requests(), third.requests()
    assert (one.blocks, two.blocks, three.blocks) == (((0, 1),), ((0, 1), (3, 3)), ((0, 0),))
    assert (one.num_prompt_tokens, one.num_new_tokens) == (550, 550)
    assert (two.num_prompt_tokens, two.num_new_tokens) == (800, 800 - 512)


def test_arrivals_are_read(tmp_path: Path) -> None:
    sessions = list(open_trace(write_arrivals(tmp_path / "a.csv"), TraceOptions()).sessions())
    assert [session.start_s for session in sessions] == pytest.approx([0.0, 0.052, 3.0])
    assert [(one.num_prompt_tokens, one.num_output_tokens) for session in sessions for one in session.requests()] == [
        (48, 10),
        (31, 8),
        (64, 2),
    ]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "[1]\n", '{"x": 1}\n'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(UnknownTraceError):
        open_trace(path, TraceOptions())


def test_prefixes_may_be_cut_differently() -> None:
    assert starts_with(((1, 5), (9, 10)), ((1, 2), (3, 5), (9, 9)))
    assert starts_with(((1, 5),), ())
    assert not starts_with(((1, 5), (9, 10)), ((1, 5), (6, 6)))
    assert not starts_with(((1, 5),), ((1, 6),))
    assert not starts_with((), ((1, 1),))


# ---- token ids ---------------------------------------------------------------------------------------------------


def test_prompts_share_exactly_what_their_blocks_say(tmp_path: Path) -> None:
    trace = open_trace(write_agents(tmp_path / "a.jsonl"), TraceOptions())
    first, second = trace.sessions()
    ids = Ids(trace.block_tokens)
    shared = ids.blocks(2)
    mine = Numbering(ids, ids.blocks(first.highest_block + 1), 2, shared)
    other = Numbering(ids, ids.blocks(second.highest_block + 1), 2, shared)
    one, two = first.stages[0][0]
    prompt, output, later = mine.prompt(one, two), mine.output(one, two), mine.prompt(two, None)
    assert (len(prompt), len(output), len(later)) == (200, 70, 330)
    # What was drawn is part of the next prompt, as in a program.
    assert later[:270] == prompt + output
    theirs = other.prompt(second.stages[0][0][0], None)
    assert theirs[:128] == prompt[:128]
    assert not set(theirs[128:]) & set(later)


def test_text_without_blocks_is_nobody_elses(tmp_path: Path) -> None:
    trace = open_trace(write_arrivals(tmp_path / "a.csv"), TraceOptions())
    ids = Ids(trace.block_tokens)
    prompts = [set(Numbering(ids, 0).prompt(one, None)) for session in trace.sessions() for one in session.requests()]
    assert len(set.union(*prompts)) == sum(len(prompt) for prompt in prompts)


# ---- tenants -----------------------------------------------------------------------------------------------------


def test_sessions_follow_the_zipf_law() -> None:
    tenants = Tenants(20, 1.1, seed=3)
    counts = Counter(tenants.of(group, 0) for group in range(20_000))
    whole = sum(1 / rank**1.1 for rank in range(1, 21))
    for rank, name in enumerate(tenants.names, start=1):
        assert counts[name] / 20_000 == pytest.approx(1 / rank**1.1 / whole, abs=0.015)
    assert [tenants.of(group, 1) for group in range(50)] == [Tenants(20, 1.1, seed=3).of(group, 1) for group in range(50)]
    assert Counter(tenants.part(name) for name in tenants.names) == {"heavy": 2, "middle": 8, "light": 10}


def test_classes_are_mixed() -> None:
    counts = Counter(ClassMix("interactive:3,background:1", 0).of(number) for number in range(4000))
    assert set(counts) == {"interactive", "background"}
    assert counts["interactive"] / 4000 == pytest.approx(0.75, abs=0.03)
    with pytest.raises(ValueError, match="urgent"):
        ClassMix("urgent:1", 0)


# ---- the loop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("write", [write_agents, write_conversations, write_arrivals])
def test_everything_ends_and_adds_up(tmp_path: Path, write: object, policy: str) -> None:
    study = Study.of(settings(write(tmp_path / "trace"), load=3.0))  # type: ignore[operator]
    witness = witnessed(study, policy)
    assert len(witness.added) == len(witness.ended) >= 30
    assert sorted(witness.programs_began) == sorted(witness.programs_ended) == list(range(1, len(witness.programs_began) + 1))
    assert witness.times == sorted(witness.times)
    for _, call in witness.ended:
        assert call.sequence.num_prompt_tokens == call.request.num_prompt_tokens
        assert call.sequence.num_output_tokens == call.request.num_output_tokens
        least = call.sequence.num_prompt_tokens - call.sequence.num_cached_tokens + call.sequence.num_output_tokens - 1
        assert call.num_computed_tokens >= least > 0


def test_a_request_follows_the_one_before_it_after_its_pause(tmp_path: Path) -> None:
    witness = witnessed(Study.of(settings(write_agents(tmp_path / "a.jsonl"))))
    ended = {(call.progress, id(call.chain), call.index): time_s for time_s, call in witness.ended}
    followers = [(added_s, call) for added_s, call in witness.added if call.index]
    assert followers
    for added_s, call in followers:
        before_s = ended[call.progress, id(call.chain), call.index - 1]
        assert call.sequence.arrival_s == before_s + call.request.think_s
        # It is taken in between two steps.
        assert added_s >= call.sequence.arrival_s


def test_sub_agents_run_side_by_side_and_their_session_waits_for_both(tmp_path: Path) -> None:
    witness = witnessed(Study.of(settings(write_agents(tmp_path / "a.jsonl"), num_requests=8)))
    stages = [[(time_s, call) for time_s, call in witness.added if call.progress.program.number == 2 and call.chain in stage]
              for stage in next(call for _, call in witness.added if call.progress.program.number == 2).progress.program.session.stages]  # fmt: skip
    ended = {call: time_s for time_s, call in witness.ended}
    agents = stages[1]
    assert len(agents) == 4
    starts = [time_s for time_s, call in agents if call.index == 0]
    assert starts[0] == starts[1]
    assert stages[2][0][1].sequence.arrival_s == max(ended[call] for _, call in agents) + 5.0


def test_with_room_for_all_nothing_is_computed_twice(tmp_path: Path) -> None:
    machine = Machine(kv_tokens=1 << 20)
    # The first session alone is two requests.
    agents = Study.of(settings(write_agents(tmp_path / "a.jsonl"), machine=machine, num_requests=2)).run("fcfs")
    assert (agents.num_requests, agents.output_tokens, agents.recomputed_tokens) == (2, 75, 0)
    chats = Study.of(settings(write_conversations(tmp_path / "c.jsonl"), machine=machine, load=0.05, num_tenants=1)).run("fcfs")
    assert (chats.num_requests, chats.output_tokens, chats.recomputed_tokens) == (30, 150, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_charges_are_those_of_the_scheduler(tmp_path: Path, policy: str) -> None:
    study = Study.of(
        settings(write_agents(tmp_path / "a.jsonl"), load=3.0, num_tenants=2, machine=Machine(kv_tokens=1024, max_running=8))
    )
    clock, pool = VirtualClock(), PagePool(64, 16)
    config = SchedulerConfig(policy=policy, max_running=8)  # type: ignore[arg-type]
    scheduler = Scheduler(config, RadixCache(pool), pool, clock)
    recorder = Recorder(
        [Member(name, "light", 1.0) for name in study.tenants.names],
        Charges(config.charge),
        AgeingCheck(10.0, policy in ("vtc", "dlpm")),
    )
    Simulation(scheduler, clock, study.settings.machine.cost, study.workload(study.workload.ids()), recorder).run()
    stats = scheduler.tenant_stats()
    assert recorder.charge == pytest.approx([stats[name].charge for name in study.tenants.names])


def test_what_knows_the_future_ends_programs_sooner(tmp_path: Path) -> None:
    """Sessions of one request: half of them take forty times as long as the others."""
    path = tmp_path / "a.csv"
    rows = [f"2023-11-16 18:17:03.{number:03}0000,{400 if number % 2 else 10},2" for number in range(200)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    study = Study.of(
        settings(path, load=20.0, num_tenants=1, num_requests=200, options=TraceOptions(), machine=Machine(max_running=2))
    )
    means = {policy: study.run(policy).completion_s.mean for policy in ("fcfs", "srpt")}
    assert means["fcfs"] > 1.3 * means["srpt"]


def test_without_levels_attained_service_decides_nothing(tmp_path: Path) -> None:
    study = Study.of(
        settings(write_agents(tmp_path / "a.jsonl"), load=5.0, num_tenants=1, machine=Machine(max_running=1, level_unit=16.0))
    )
    levelled, flat = (study.run(policy) for policy in ("dlpm", "flat"))
    assert levelled.num_requests == flat.num_requests
    assert levelled.completion_s != flat.completion_s


def test_a_run_gives_the_same_again(tmp_path: Path) -> None:
    path = write_agents(tmp_path / "a.jsonl")
    results = [Study.of(settings(path, load=2.0, flood=Flood(0.5, 100, 4))).run("dlpm", leases=True).as_dict() for _ in range(2)]
    for result in results:
        del result["cpu_s"]
    assert results[0] == results[1]


def test_the_flood_ends_with_the_programs(tmp_path: Path) -> None:
    result = Study.of(settings(write_agents(tmp_path / "a.jsonl"), flood=Flood(0.5, 100, 4))).run("fcfs")
    assert result.num_programs == 8
    assert result.num_requests > 32
    assert result.tenants[-1].name == "flood"
    assert result.tenants[-1].requests == result.num_requests - 32


def test_the_load_sets_the_rate_of_arrivals(tmp_path: Path) -> None:
    path = write_arrivals(tmp_path / "a.csv")
    studies = [Study.of(settings(path, num_requests=300, load=load)) for load in (0.5, 1.0)]
    spans = [list(study.workload(study.workload.ids()))[-1].start_s for study in studies]
    assert spans[0] == pytest.approx(2 * spans[1])
    assert 300 / spans[1] == pytest.approx(studies[1].capacity.requests_per_s, rel=0.05)


def test_time_never_goes_back() -> None:
    clock = VirtualClock()
    clock.advance_to(2.0)
    with pytest.raises(ValueError, match="back"):
        clock.advance_to(1.0)
