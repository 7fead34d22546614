"""The engine's loop with a cost model in place of the model: receive, schedule, let the step's time pass, draw, go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from radixserve_runtime.scheduler.sequence import Sequence, Status

from .clock import Agenda, VirtualClock
from .leasing import NoLeases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve_runtime.scheduler.plan import StepPlan
    from radixserve_runtime.scheduler.scheduler import Scheduler

    from .cost import StepCost
    from .leasing import Leasing
    from .sessions import Chain, Request
    from .workload import Program


class StalledError(RuntimeError):
    """The scheduler has work, runs nothing, and waits for nothing. That would be a bug of the scheduler's."""


@dataclass(slots=True, eq=False)
class Progress:
    """A program at work."""

    program: Program
    stage: int = 0
    num_open_chains: int = 0
    left_units: float = 0.0
    """What its requests that have not ended need at least, in charge units without the context's."""
    thinking_s: float = 0.0
    """Pauses so far; of a stage's chains, those of the one that ended last."""


@dataclass(slots=True, eq=False)
class Call:
    """One request that was given to the scheduler."""

    request: Request
    progress: Progress
    chain: Chain
    index: int
    sent_s: float
    sequence: Sequence
    output: list[int]
    num_ideal_tokens: int
    """Tokens that must go through the model with a cache without limit."""
    left: Call | None
    """The call whose branch it goes on with, until it has a slot."""
    num_computed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A chain's next request, before it is sent."""

    progress: Progress
    chain: Chain
    index: int
    before: Call | None = None
    """The call that it follows."""


class Watcher(Protocol):
    """Told what happens. Times are virtual."""

    def program_began(self, program: Program, now_s: float) -> None:
        """A session arrived."""
        ...

    def program_ended(self, progress: Progress, now_s: float) -> None:
        """Its last request ended."""
        ...

    def call_added(self, call: Call, now_s: float) -> None:
        """A request waits."""
        ...

    def call_ended(self, call: Call, now_s: float) -> None:
        """A request has all its tokens."""
        ...

    def stepped(self, plan: StepPlan, planned_s: float, now_s: float) -> None:
        """A step that was planned at `planned_s` was computed: its tokens are not drawn yet."""
        ...


class Simulation:
    """Runs programs through a scheduler until all have ended.

    Sessions arrive when the workload says (open loop); within one, a request follows the end of the one before it and a
    pause (closed loop), and the chains of a stage run side by side.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: VirtualClock,
        cost: StepCost,
        programs: Iterator[Program],
        watcher: Watcher,
        leasing: Leasing | None = None,
        background: Iterator[Program] | None = None,
        knows_the_future: bool = False,
    ) -> None:
        """`knows_the_future`: sequences arrive in order of what their programs have left, so that first come first served means shortest first."""
        self._scheduler = scheduler
        self._clock = clock
        self._cost = cost
        self._programs = programs
        self._watcher = watcher
        self._leasing: Leasing = leasing or NoLeases()
        self._agenda = Agenda()
        self._background = background
        self._knows_the_future = knows_the_future
        self._calls: dict[Sequence, Call] = {}
        self._num_calls = 0
        self._num_open = 0
        """Programs that have not ended or are expected, the background's aside."""

    def run(self) -> None:
        """Until everything has ended. Raises `StalledError`."""
        self._expect_program()
        self._expect_background()
        while True:
            self._agenda.run_until(self._clock())
            self._leasing.tick()
            plan = self._scheduler.schedule()
            if plan is not None and plan.chunks:
                self._step(plan)
            elif not self._wait():
                return

    def _wait(self) -> bool:
        """Go on to when something happens; False when nothing will."""
        times = [time_s for time_s in (self._agenda.next_s, self._scheduler.next_deadline_s) if time_s is not None]
        if not times:
            if self._scheduler.has_work:
                raise StalledError(f"{self._scheduler.num_waiting} sequences wait and nothing runs at {self._clock()} s")
            return False
        self._clock.advance_to(max(self._clock(), min(times)))
        return True

    def _step(self, plan: StepPlan) -> None:
        planned_s, duration_s = self._clock(), self._cost.step_s(plan.chunks)
        self._clock.advance_to(planned_s + duration_s)
        complete = [chunk.sequence for chunk in plan.chunks if chunk.completes]
        for chunk in plan.chunks:
            call = self._calls[chunk.sequence]
            call.num_computed_tokens += chunk.count
            if call.left is not None:
                self._leasing.resumed(call.left)
                call.left = None
        self._scheduler.complete(plan, duration_s)
        self._watcher.stepped(plan, planned_s, self._clock())
        for sequence in complete:
            self._draw(sequence)

    def _draw(self, sequence: Sequence) -> None:
        call = self._calls[sequence]
        self._scheduler.append_token(sequence, call.output[sequence.num_output_tokens])
        if sequence.num_output_tokens >= sequence.max_tokens:
            self._end(call)

    # ---- programs --------------------------------------------------------------------------------------------

    def _expect_program(self) -> None:
        program = next(self._programs, None)
        if program is not None:
            self._num_open += 1
            self._agenda.at(program.start_s, lambda time_s: self._begin(program, time_s))

    def _expect_background(self) -> None:
        """The next of its programs, as long as there are others."""
        program = next(self._background, None) if self._background is not None and self._num_open else None
        if program is not None:
            self._agenda.at(program.start_s, lambda time_s: self._begin_background(program, time_s))

    def _begin(self, program: Program, time_s: float) -> None:
        self._expect_program()
        self._watcher.program_began(program, self._clock())
        left_units = sum(_units(request) for request in program.session.requests())
        self._begin_stage(Progress(program, left_units=left_units), time_s)

    def _begin_background(self, program: Program, time_s: float) -> None:
        self._expect_background()
        self._watcher.program_began(program, self._clock())
        self._begin_stage(Progress(program), time_s)

    def _begin_stage(self, progress: Progress, time_s: float) -> None:
        chains = progress.program.session.stages[progress.stage]
        progress.num_open_chains = len(chains)
        for chain in chains:
            self._plan(Turn(progress, chain, 0), time_s)

    def _plan(self, turn: Turn, time_s: float) -> None:
        """The next request of a chain, after its pause."""
        self._agenda.at(time_s + turn.chain[turn.index].think_s, lambda sent_s: self._send(turn, sent_s))

    def _send(self, turn: Turn, time_s: float) -> None:
        progress, chain, index = turn.progress, turn.chain, turn.index
        request, after = chain[index], chain[index + 1] if index + 1 < len(chain) else None
        program = progress.program
        tokens = program.numbering.prompt(request, after)
        self._num_calls += 1
        sequence = Sequence(
            request_id=self._num_calls,
            token_ids=tokens,
            num_prompt_tokens=len(tokens),
            max_tokens=request.num_output_tokens,
            namespace=(("tenant", program.tenant),),
            tenant=program.tenant,
            program=program.conversation,
            priority=program.priority,
            arrival_s=progress.left_units if self._knows_the_future else time_s,
            status=Status.WAITING,
        )
        unshared, program.num_unshared = program.num_unshared, 0
        new = min(request.num_new_tokens + unshared, len(tokens))
        call = Call(
            request=request,
            progress=progress,
            chain=chain,
            index=index,
            sent_s=time_s,
            sequence=sequence,
            output=program.numbering.output(request, after),
            num_ideal_tokens=new + request.num_output_tokens - 1,
            left=turn.before,
        )
        self._calls[sequence] = call
        self._scheduler.add(sequence)
        self._watcher.call_added(call, self._clock())

    def _end(self, call: Call) -> None:
        self._scheduler.finish(call.sequence)
        del self._calls[call.sequence]
        self._watcher.call_ended(call, self._clock())
        progress = call.progress
        progress.left_units -= _units(call.request)
        if call.index + 1 < len(call.chain):
            if call.request.is_extended:
                self._leasing.paused(call)
            self._plan(Turn(progress, call.chain, call.index + 1, call), self._clock())
            return
        progress.num_open_chains -= 1
        if progress.num_open_chains:
            return
        progress.thinking_s += sum(request.think_s for request in call.chain)
        progress.stage += 1
        if progress.stage < len(progress.program.session.stages):
            self._begin_stage(progress, self._clock())
        else:
            self._num_open -= not progress.program.is_background
            self._watcher.program_ended(progress, self._clock())


def _units(request: Request) -> float:
    """Charge units that it takes with a cache without limit, leaving the context aside."""
    return request.num_new_tokens + 2.0 * request.num_output_tokens
