"""An `EngineCore` in this process, driven message by message: no sockets, a real model."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixserve_runtime.config import RuntimeConfig
from radixserve_runtime.engine.build import build_core
from radixserve_runtime.protocol import (
    Base,
    Failed,
    Finished,
    Generate,
    Hello,
    Owner,
    PromptLogprobs,
    Ready,
    Sampling,
    Score,
    Scored,
    TokenLogprob,
    Tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass
class Answer:
    """Everything that one request said."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    hold_bytes: list[int] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)
    finished: Finished | None = None
    scored: Scored | None = None
    failed: Failed | None = None
    other: list[Any] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.finished is not None or self.failed is not None or self.scored is not None


class Driver:
    """Sends requests to a core and collects what it says."""

    def __init__(
        self,
        model: Path,
        *,
        vocabulary: tuple[bytes, ...],
        eos: tuple[int, ...] = (),
        clock: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> None:
        options: dict[str, Any] = {"dtype": "float32", "backend": "reference", "kv_tokens": 4096, "num_threads": 1} | settings
        self.core = build_core(RuntimeConfig(model=str(model), socket="ipc://unused", **options), clock)
        self.answers: dict[int, Answer] = {}
        self.events: list[Any] = []
        self._next = 1
        self.core.handle(Hello(version=1, fingerprint="test", vocabulary=vocabulary, eos_token_ids=eos))
        assert isinstance(self.core.take_events()[0], Ready)

    def submit(
        self, prompt: list[int], *, owner: Owner | None = None, grammar: Any = None, branch: int | None = None, **sampling: Any
    ) -> int:
        """Send one generation; greedy and 16 tokens unless said."""
        request_id, self._next = self._next, self._next + 1
        settings: dict[str, Any] = {"max_tokens": 16, "seed": 0, "temperature": 0.0} | sampling
        self.answers[request_id] = Answer()
        self.core.handle(
            Generate(
                request_id=request_id,
                branch_id=request_id if branch is None else branch,
                base=Base(new_ids=tuple(prompt)),
                sampling=Sampling(**settings),
                owner=owner or Owner(),
                grammar=grammar,
            )
        )
        self.collect()
        return request_id

    def submit_score(self, prompt: list[int], options: list[list[int]]) -> int:
        """Send one score."""
        request_id, self._next = self._next, self._next + 1
        self.answers[request_id] = Answer()
        self.core.handle(
            Score(
                request_id=request_id,
                branch_id=request_id,
                base=Base(new_ids=tuple(prompt)),
                options=tuple(tuple(option) for option in options),
            )
        )
        self.collect()
        return request_id

    def step(self) -> bool:
        """One step of the engine."""
        stepped = self.core.step()
        self.collect()
        return stepped

    def run(self, max_steps: int = 5000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if all(answer.ended for answer in self.answers.values()):
                return
            self.step()
        raise AssertionError(f"still running after {max_steps} steps: {self.core.stats()}")

    def check_idle(self) -> None:
        """Every page is free or cached; raises `AssertionError`."""
        stats = self.core.stats()
        assert stats.pages_locked == 0
        assert stats.pages_free + stats.pages_cached == stats.pages_total

    def generate(self, prompt: list[int], **sampling: Any) -> Answer:
        """One generation, alone, to its end."""
        request_id = self.submit(prompt, **sampling)
        self.run()
        return self.answers[request_id]

    def collect(self) -> None:
        for event in self.core.take_events():
            self.events.append(event)
            answer = self.answers.get(getattr(event, "request_id", -1))
            if answer is None:
                continue
            match event:
                case Tokens():
                    answer.token_ids.extend(event.token_ids)
                    answer.logprobs.extend(event.logprobs)
                    answer.hold_bytes.append(event.hold_bytes)
                    answer.cached_tokens.append(event.cached_tokens)
                case PromptLogprobs():
                    answer.prompt_logprobs.extend(event.entries)
                case Finished():
                    answer.finished = event
                case Scored():
                    answer.scored = event
                case Failed():
                    answer.failed = event
                case _:
                    answer.other.append(event)
