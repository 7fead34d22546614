"""POST /v1/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from radixserve.http.answer import ending, head, respond
from radixserve.http.body import read_json
from radixserve.http.constraints import find_constraint
from radixserve.http.errors import BadRequestError
from radixserve.http.event_forms import DataEvents
from radixserve.http.fields import show
from radixserve.http.logprobs import CompletionLogprobs
from radixserve.http.openapi import describes
from radixserve.http.program import ProgramSpec
from radixserve.http.prompts import parse_prompts
from radixserve.http.schemas import CompletionRequest, parse_request
from radixserve.http.state import state_of
from radixserve.http.unsupported import refuse_unsupported
from radixserve.http.usage import UsageTally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.http.program import Segment
    from radixserve.http.state import ServerState
    from radixserve_tokenizer.protocol import Delta, Done, ModelCard, TokenLogprob

router = APIRouter(tags=["completions"])


@router.post(
    "/v1/completions",
    summary="Continue text or token ids",
    openapi_extra=describes("CompletionRequest", "TextAnswer", "TextAnswer"),
    response_class=Response,
)
async def completions(http: Request) -> Response:
    """OpenAI's older API, over raw text or token ids. Choices are numbered prompt by prompt.

    Without `max_tokens` the rest of the context may be filled. `echo` with `logprobs` gives the prompt's log-probabilities
    (streamed: in one chunk, once they are all there); `max_tokens` 0 asks for them alone.
    """
    state = state_of(http)
    body = await read_json(http, state.config)
    card = state.card
    request = parse_request(CompletionRequest, body, state.config)
    name = state.check_model(request.model)
    prompts = parse_prompts(request.prompt, card.vocab_size, state.config)
    specs = build_specs(request, body, prompts, state)
    writer = CompletionWriter(request, name, card, prompts, await _echoes(request, prompts, state))
    return await respond(http, state, request, specs, writer)


def build_specs(
    request: CompletionRequest, body: dict[str, Any], prompts: list[Segment], state: ServerState
) -> list[ProgramSpec]:
    """One program for each prompt; raises `BadRequestError`."""
    refuse_unsupported(body, api="completions")
    n = request.n or 1
    if request.best_of is not None and request.best_of != n:
        raise BadRequestError(
            f"'best_of' must equal 'n' ({n}), not {show(request.best_of)}.", param="best_of", code="unsupported_parameter"
        )
    most = state.config.max_choices
    if len(prompts) * n > most:
        raise BadRequestError(
            f"{len(prompts)} prompts with 'n' {n} are more than the limit of {most} choices.", param="n", code="invalid_value"
        )
    logprobs = -1 if request.logprobs is None else request.logprobs
    prompt_logprobs = logprobs if request.echo else -1
    sampling = request.sampling(state.card, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    asked = find_constraint(body)
    names = {"constraint": asked.field, "messages": "prompt", "ids": "prompt"}
    # The prompt's log-probabilities come with the end of a generation and must be written before its text.
    stream = bool(request.stream) and prompt_logprobs < 0
    return [
        ProgramSpec(segments=(prompt,), sampling=sampling, constraint=asked.constraint, n=n, stream=stream, request_fields=names)
        for prompt in prompts
    ]


async def _echoes(request: CompletionRequest, prompts: list[Segment], state: ServerState) -> list[str]:
    """The text that each prompt's choices begin with."""
    if not request.echo:
        return [""] * len(prompts)
    return [
        one.text if one.ids is None else str((await state.query("detokenize", {"ids": list(one.ids)}))["text"]) for one in prompts
    ]


class _ChoiceState:
    """How much of a choice its client has."""

    __slots__ = ("logprobs", "num_chars", "num_logprobs", "opened")

    def __init__(self, logprobs: CompletionLogprobs | None) -> None:
        self.logprobs = logprobs
        self.opened = False
        self.num_chars = 0
        self.num_logprobs = 0


class CompletionWriter:
    """Writes completions, whole and in chunks. `echoes` has the text before each prompt's choices ("" without `echo`)."""

    def __init__(self, request: CompletionRequest, name: str, card: ModelCard, prompts: list[Segment], echoes: list[str]) -> None:
        self.form = DataEvents()
        self._request = request
        self._prompts = prompts
        self._want_usage = bool(request.options().include_usage)
        self._echoes = echoes
        self._n = request.n or 1
        self._head = head("cmpl", "text_completion", request, name, card)
        self._usage = UsageTally(n=self._n)
        self._states: dict[int, _ChoiceState] = {}

    def whole(self, choices: Sequence[Done]) -> dict[str, Any]:
        """The answer that isn't streamed."""
        written: list[dict[str, Any]] = []
        for index, done in enumerate(choices):
            self._usage.add(index, done.usage)
            state = self._state(index)
            logprobs = _take(state, done.logprobs, done.prompt_logprobs)
            written.append({"index": index, "text": self._echo(index) + done.value, "logprobs": logprobs, **_ending(done)})
        return {**self._head, "choices": written, "usage": self._usage.body()}

    def delta(self, choice: int, delta: Delta) -> list[dict[str, Any]]:
        """A chunk for new text; none while the text is withheld."""
        state = self._state(choice)
        text = delta.text if state.opened else self._echo(choice) + delta.text
        if not text and not (state.logprobs is not None and delta.logprobs):
            return []
        state.opened = True
        state.num_chars += len(delta.text)
        state.num_logprobs += len(delta.logprobs)
        return [self._chunk(choice, text, _take(state, delta.logprobs), {"finish_reason": None})]

    def done(self, choice: int, done: Done) -> list[dict[str, Any]]:
        """The chunk with the rest of the text and the finish reason."""
        self._usage.add(choice, done.usage)
        state = self._state(choice)
        text = done.value[state.num_chars :]
        if not state.opened:
            text = self._echo(choice) + text
        logprobs = _take(state, done.logprobs[state.num_logprobs :], done.prompt_logprobs)
        return [self._chunk(choice, text, logprobs, _ending(done))]

    def end(self) -> list[dict[str, Any]]:
        """The chunk with the usage, if it was asked for."""
        return [{**self._head, "choices": [], "usage": self._usage.body()}] if self._want_usage else []

    def _state(self, choice: int) -> _ChoiceState:
        state = self._states.get(choice)
        if state is None:
            request = self._request
            logprobs = None
            if request.logprobs is not None:
                # Ids are echoed as all that they stand for; text is echoed as it was sent, without a BOS before it.
                from_ids = self._prompts[choice // self._n].ids is not None
                shown = request.skip_special_tokens is False
                logprobs = CompletionLogprobs(request.logprobs, special_in_prompt=from_ids, special_in_output=shown)
            state = self._states[choice] = _ChoiceState(logprobs)
        return state

    def _echo(self, choice: int) -> str:
        return self._echoes[choice // self._n]

    def _chunk(self, choice: int, text: str, logprobs: dict[str, Any] | None, end: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "choices": [{"index": choice, "text": text, "logprobs": logprobs, **end}]}
        if self._want_usage:
            chunk["usage"] = None
        return chunk


def _take(state: _ChoiceState, output: Sequence[TokenLogprob], prompt: Sequence[TokenLogprob] = ()) -> dict[str, Any] | None:
    return None if state.logprobs is None else state.logprobs.take(output, prompt)


def _ending(done: Done) -> dict[str, Any]:
    """How a choice ended; with the prompt's log-probabilities also its ids, by vLLM's name."""
    end = ending(done)
    if done.prompt_token_ids:
        end["prompt_token_ids"] = list(done.prompt_token_ids)
    return end
