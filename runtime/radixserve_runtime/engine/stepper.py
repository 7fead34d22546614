"""One step: the scheduler's plan through the model, and what its logits mean for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from radixserve_runtime.engine.collect import collect_prompt, collect_score
from radixserve_runtime.engine.executor import ChunkFailure
from radixserve_runtime.engine.requests import Generation, Scoring, usage
from radixserve_runtime.protocol import Failed, Finished, FromRuntime, PromptLogprobs, Scored, Tokens
from radixserve_runtime.sampling.sampler import NOTHING_ALLOWED

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.engine.draw import Drawer
    from radixserve_runtime.engine.executor import ChunkLogits, Executor
    from radixserve_runtime.engine.live import LiveRequests
    from radixserve_runtime.engine.tenancy import Tenancy
    from radixserve_runtime.scheduler.scheduler import Scheduler
    from radixserve_runtime.scheduler.sequence import Sequence


class Stepper:
    """Carries live requests on, one step at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        requests: LiveRequests,
        tenancy: Tenancy,
        emit: Callable[[FromRuntime], None],
        clock: Callable[[], float],
        *,
        jump_forward: bool = True,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._requests = requests
        self._tenancy = tenancy
        self._emit = emit
        self._clock = clock
        self._jump_forward = jump_forward
        self.drawer: Drawer | None = None
        """Of the vocabulary that is being served; set before anything runs."""

    def step(self) -> bool:
        """Run one step if anything can run; returns whether it did."""
        plan = self._scheduler.schedule()
        if plan is None or not plan.chunks:
            return False
        self._tenancy.scheduled(plan)
        before = self._clock()
        with torch.inference_mode():
            results = self._executor.run(plan)
            self._scheduler.complete(plan, self._clock() - before)
            self._use([result for result in results if self._survives(result)])
        return True

    def _survives(self, result: ChunkLogits | ChunkFailure) -> bool:
        """False, after failing its request, for a chunk whose forward raises; also for one whose request is gone by now."""
        request = self._requests.of(result.chunk.sequence)
        if request is None:
            return False
        if isinstance(result, ChunkFailure):
            self._requests.release(request)
            self._fail(request.message.request_id, "forward_failed", f"{type(result.error).__name__}: {result.error}")
            return False
        return True

    def _use(self, results: list[ChunkLogits | ChunkFailure]) -> None:
        drawing: list[tuple[Generation, torch.Tensor]] = []  # rows [1 + n, V] each
        for result in results:
            assert not isinstance(result, ChunkFailure)
            request = self._requests.of(result.chunk.sequence)
            if isinstance(request, Scoring):
                self._collect_score(request, result)
            elif isinstance(request, Generation):
                entries = collect_prompt(request, result, self._vocab_size())
                if entries is not None:
                    self._emit(PromptLogprobs(request_id=request.message.request_id, entries=entries))
                if result.draw_rows is not None:
                    drawing.append((request, result.draw_rows))
                elif result.chunk.completes and request.sequence.max_tokens == 0:
                    self._finish(request, "length")
        place = 0
        while drawing:
            # A row of each at a time: the next one counts only if its draft token is what was drawn.
            going_on = self._draw([(generation, rows[place]) for generation, rows in drawing])
            drawing = [(generation, rows) for generation, rows in drawing if generation in going_on]
            place += 1

    def _collect_score(self, scoring: Scoring, result: ChunkLogits) -> None:
        collect_score(scoring, result, self._vocab_size())
        if result.chunk.completes:
            self._requests.finish_sequence(result.chunk.sequence)
            self._tenancy.ended(scoring.message.branch_id, result.chunk.sequence, self._clock())
            scoring.unfinished -= 1
            if scoring.unfinished == 0:
                self._finish_scoring(scoring)

    def _finish_scoring(self, scoring: Scoring) -> None:
        self._requests.forget(scoring)
        prompt = scoring.sequences[0].logprobs_from
        self._emit(
            Scored(
                request_id=scoring.message.request_id,
                logprobs=tuple(tuple(values) for values in scoring.logprobs),
                usage=usage(scoring.sequences, prompt, self._clock()),
            )
        )

    def _vocab_size(self) -> int:
        assert self.drawer is not None
        return len(self.drawer.vocabulary)

    def _draw(self, drawing: list[tuple[Generation, torch.Tensor]]) -> set[Generation]:
        """Draw a token for each; those whose draft goes on."""
        assert self.drawer is not None
        going_on: set[Generation] = set()
        for (generation, _), drawn in zip(drawing, self.drawer.draw(drawing), strict=True):
            request_id = generation.message.request_id
            if isinstance(drawn, str):
                self._requests.release(generation)
                self._fail(request_id, "nothing_allowed" if drawn == NOTHING_ALLOWED else "sampling_failed", drawn)
                continue
            sequence = generation.sequence
            if self._append(sequence, drawn.token_id):
                going_on.add(generation)
            self._emit(
                Tokens(
                    request_id=request_id,
                    token_ids=(drawn.token_id,),
                    logprobs=(drawn.logprob,) if drawn.logprob is not None else (),
                    hold_bytes=drawn.hold_bytes,
                    cached_tokens=max(0, sequence.num_cached_tokens) if sequence.num_output_tokens == 1 else -1,
                )
            )
            if drawn.ends:
                self._finish(generation, "stop", drawn.stop, drawn.stop_token_id, drawn.cut_bytes)
            elif sequence.num_output_tokens >= sequence.max_tokens:
                self._finish(generation, "length")
            else:
                if generation not in going_on and self._jump_forward:
                    self._draft(generation)
                continue
            going_on.discard(generation)
        return going_on

    def _append(self, sequence: Sequence, token_id: int) -> bool:
        """Take a drawn token in; whether it was the next of a draft, so that the row behind it can be drawn from."""
        if sequence.num_draft:
            if sequence.token_ids[-sequence.num_draft] == token_id:
                self._scheduler.accept_draft(sequence)
                return True
            self._scheduler.reject_draft(sequence)
        self._scheduler.append_token(sequence, token_id)
        return False

    def _draft(self, generation: Generation) -> None:
        """Where the grammar leaves only one way to go on, the tokens of that way go through the model in one step."""
        assert self.drawer is not None
        sequence = generation.sequence
        token_ids = self.drawer.forced(generation, sequence.max_tokens - sequence.num_output_tokens - 1)
        if token_ids:
            self._scheduler.draft(sequence, token_ids)

    def _finish(
        self, generation: Generation, reason: str, stop: bytes = b"", stop_token_id: int = -1, cut_bytes: int = 0
    ) -> None:
        sequence = generation.sequence
        self._tenancy.computed(generation.message.request_id, sequence)
        self._requests.finish_sequence(sequence)
        self._tenancy.ended(generation.message.branch_id, sequence, self._clock())
        self._requests.forget(generation)
        self._emit(
            Finished(
                request_id=generation.message.request_id,
                reason="stop" if reason == "stop" else "length",
                usage=usage([sequence], sequence.num_prompt_tokens, self._clock()),
                stop=stop,
                stop_token_id=stop_token_id,
                cut_bytes=cut_bytes,
            )
        )

    def _fail(self, request_id: int, code: str, message: str) -> None:
        self._emit(Failed(request_id=request_id, code=code, message=message))
