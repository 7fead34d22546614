"""The engine without its socket: messages in, steps, events out. One thread owns it."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

import msgspec

from radixserve_runtime.engine.branches import BranchTable, MissingBaseError
from radixserve_runtime.engine.draw import Drawer
from radixserve_runtime.engine.live import LiveRequests
from radixserve_runtime.engine.requests import Generation, Scoring, start_generation, start_scoring, usage
from radixserve_runtime.engine.statistics import Statistics
from radixserve_runtime.engine.stepper import Stepper
from radixserve_runtime.engine.tenancy import BusyError, PublicPrefixError, Tenancy
from radixserve_runtime.engine.transport import PeerLost
from radixserve_runtime.grammar.request import GrammarError
from radixserve_runtime.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Drop,
    Failed,
    Finished,
    Fork,
    FromRuntime,
    Generate,
    Heartbeat,
    Hello,
    Lease,
    NeedGrammar,
    NeedTokens,
    Ping,
    Publish,
    Ready,
    Rejected,
    Release,
    ResetCache,
    Score,
    SetWeights,
    Stats,
    Usage,
)
from radixserve_runtime.scheduler.config import SequenceTooLongError

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Seq

    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.engine.executor import Executor
    from radixserve_runtime.engine.transport import Incoming
    from radixserve_runtime.protocol import ModelInfo, ToRuntime
    from radixserve_runtime.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)


class EngineCore:
    """Requests, their sequences, and one step at a time."""

    def __init__(
        self,
        *,
        model: ModelInfo,
        scheduler: Scheduler,
        cache: RadixCache,
        pool: PagePool,
        executor: Executor,
        clock: Callable[[], float],
        jump_forward: bool = True,
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self._cache = cache
        self._pool = pool
        self._clock = clock
        self._epoch = uuid.uuid4().hex
        self._branches = BranchTable()
        self._tenancy = Tenancy(cache, pool, self._branches)
        self._drawer: Drawer | None = None
        self._fingerprint = ""
        self._requests = LiveRequests(scheduler, self._tenancy)
        self._stepper = Stepper(scheduler, executor, self._requests, self._tenancy, self._emit, clock, jump_forward=jump_forward)
        self._events: list[FromRuntime] = []
        self._started_s = clock()
        self._last_progress_s = clock()
        self._num_aborted = 0
        self._statistics = Statistics(scheduler, cache, pool, self._tenancy, clock)
        self._stats = self._statistics.make(self._num_aborted)

    # ---- what the loop asks -----------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a step could do something, now or at `next_deadline_s`."""
        return self._scheduler.has_work

    @property
    def next_deadline_s(self) -> float | None:
        """When waiting work becomes due by the clock alone (dynamic and static batching); None: now, or never."""
        return self._scheduler.next_deadline_s

    def stats(self) -> Stats:
        """A snapshot; may be called from another thread."""
        now_s = self._clock()
        idle_s = now_s - self._last_progress_s if self._requests else 0.0
        return msgspec.structs.replace(self._stats, idle_s=idle_s, uptime_s=now_s - self._started_s)

    def take_events(self) -> list[FromRuntime]:
        """Events since the last call."""
        lost = self._tenancy.take_lost()
        if lost:
            self._stats = self._statistics.make(self._num_aborted)
        events, self._events = [*self._events, *lost], []
        return events

    # ---- messages ---------------------------------------------------------------------------------------------------

    def handle(self, message: Incoming) -> None:
        """Act on one message. Whatever goes wrong concerns that message alone."""
        if not self._requests:
            self._last_progress_s = self._clock()
        try:
            self._dispatch(message)
        except Exception as error:
            logger.exception("a message could not be handled: %s", type(message).__name__)
            self._fail(getattr(message, "request_id", -1), "internal", f"{type(error).__name__}: {error}")
        self._stats = self._statistics.make(self._num_aborted)

    def _dispatch(self, message: ToRuntime | PeerLost) -> None:
        match message:
            case Hello():
                self._hello(message)
            case PeerLost():
                self._cancel_all()
            case Generate() | Score():
                self._admit(message)
            case Fork():
                try:
                    self._branches.fork(message.parent_id, message.child_ids, message.base)
                except MissingBaseError:
                    self._branches.drop(message.child_ids)  # the children's first use asks for their whole logs
            case Drop():
                self._branches.drop(message.branch_ids)
                self._tenancy.release(message.branch_ids)
            case Publish():
                self._publish(message)
            case Lease() | Release() | ResetCache() | SetWeights():
                self._dispatch_upkeep(message)
            case Cancel():
                for request_id in message.request_ids:
                    self._abort(request_id)
            case Ping():
                pass

    def _dispatch_upkeep(self, message: Lease | Release | ResetCache | SetWeights) -> None:
        match message:
            case Lease():
                self._tenancy.lease(message, self._clock())
            case Release():
                self._tenancy.release((message.branch_id,))
            case SetWeights():
                self._scheduler.set_weights(message.weights)
            case ResetCache():
                self._cache.reset()
                self._events.append(Heartbeat(stats=self._statistics.make(self._num_aborted)))

    def _hello(self, message: Hello) -> None:
        self._cancel_all()
        self._events.clear()
        if message.version != PROTOCOL_VERSION:
            self._events.append(
                Rejected(message=f"protocol version {message.version} is not spoken here; this runtime speaks {PROTOCOL_VERSION}")
            )
            return
        if len(message.vocabulary) > self._model.vocab_size:
            self._events.append(
                Rejected(
                    message=f"the tokenizer has {len(message.vocabulary)} tokens and the model only {self._model.vocab_size}: "
                    "they do not belong together"
                )
            )
            return
        if self._drawer is None or (self._fingerprint, self._drawer.grammar_marks) != (
            message.fingerprint,
            message.grammar_marks,
        ):
            self._drawer = self._stepper.drawer = Drawer(message.vocabulary, message.eos_token_ids, message.grammar_marks)
            self._fingerprint = message.fingerprint
        self._events.append(
            Ready(
                version=PROTOCOL_VERSION,
                epoch=self._epoch,
                fingerprint=message.fingerprint,
                model=self._model,
                stats=self._statistics.make(self._num_aborted),
            )
        )

    def _drawer_for(self, request_id: int) -> Drawer | None:
        """None, after failing the request, if it can't be begun at all."""
        if self._drawer is None:
            self._fail(request_id, "no_hello", "say hello with the vocabulary first")
        elif request_id in self._requests:
            self._fail(request_id, "duplicate_request", f"request {request_id} is already running")
        else:
            return self._drawer
        return None

    def _publish(self, message: Publish) -> None:
        drawer = self._drawer_for(message.request_id)
        if drawer is None:
            return
        problem = self._unusable(message.token_ids, None, drawer)
        if problem:
            self._fail(message.request_id, "invalid_value", problem)
            return
        if self._tenancy.is_public(message.token_ids):
            count = len(message.token_ids)
            known = Usage(prompt_tokens=count, cached_tokens=count, output_tokens=0)
            self._events.append(Finished(request_id=message.request_id, reason="length", usage=known))
            return
        try:
            generation = self._tenancy.start_public(
                message.request_id, message.token_ids, self._requests.sequences, self._clock(), drawer
            )
        except PublicPrefixError as error:
            self._fail(message.request_id, "public_prefix", str(error))
        except BusyError as error:
            self._events.append(Failed(request_id=message.request_id, code="busy", message=str(error), retryable=True))
        else:
            self._start(generation)

    def _admit(self, message: Generate | Score) -> None:
        drawer = self._drawer_for(message.request_id)
        if drawer is None:
            return
        try:
            token_ids = self._branches.apply(message.branch_id, message.base)
        except MissingBaseError:
            self._events.append(NeedTokens(request_id=message.request_id, branch_id=message.branch_id))
            return
        problem = self._unusable(token_ids, message.options if isinstance(message, Score) else None, drawer)
        if isinstance(message, Generate) and message.sampling.max_tokens < 0:
            problem = f"max_tokens can't be negative, but is {message.sampling.max_tokens}"
        if problem:
            self._fail(message.request_id, "invalid_value", problem)
            return
        now_s = self._clock()
        if isinstance(message, Score):
            self._start(start_scoring(message, token_ids, now_s))
            return
        generation = start_generation(message, token_ids, now_s, drawer.vocabulary, drawer.eos_token_ids)
        if message.grammar is not None:
            try:
                if not drawer.attach_grammar(generation, message.grammar):
                    self._events.append(NeedGrammar(request_id=message.request_id, key=message.grammar.key))
                    return
            except GrammarError as error:
                self._fail(message.request_id, "grammar", str(error))
                return
        self._tenancy.added(generation.sequence, message.branch_id)  # a start that fails takes it out again
        self._start(generation)

    @staticmethod
    def _unusable(token_ids: Seq[int], options: tuple[tuple[int, ...], ...] | None, drawer: Drawer) -> str:
        """Why a request can't run; empty when it can. The tokenizer process checks the same things for a better message."""
        if not token_ids:
            return "the prompt is empty"
        if options is not None and (not options or not all(options)):
            return "a score needs at least one option, and no option may be empty"
        limit = len(drawer.vocabulary)
        for ids in (token_ids, *(options or ())):
            if min(ids) < 0 or max(ids) >= limit:
                return f"a token id is outside the vocabulary of {limit} tokens"
        return ""

    def _start(self, request: Generation | Scoring) -> None:
        try:
            self._requests.start(request)
            self._tenancy.waits(request.message.branch_id)
        except SequenceTooLongError as error:
            self._fail(request.message.request_id, "context_length_exceeded", str(error))

    def _abort(self, request_id: int) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        self._num_aborted += 1
        sequences = self._requests.release(request)
        prompt = sequences[0].num_prompt_tokens
        self._events.append(Finished(request_id=request_id, reason="abort", usage=usage(sequences, prompt, self._clock())))

    def _cancel_all(self) -> None:
        for request_id in self._requests.ids:
            self._abort(request_id)
        self._branches.clear()
        self._tenancy.clear()

    def _emit(self, event: FromRuntime) -> None:
        self._events.append(event)

    def _fail(self, request_id: int, code: str, message: str) -> None:
        self._events.append(Failed(request_id=request_id, code=code, message=message))

    # ---- one step ---------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Run one step if anything can run; returns whether it did."""
        self._tenancy.expire(self._clock())
        if not self._stepper.step():
            return False
        self._last_progress_s = self._clock()
        self._stats = self._statistics.make(self._num_aborted)
        return True
