"""How chat answers are written, whole and in chunks: OpenAI's objects, calls included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.http.answer import ending, head
from radixserve.http.event_forms import DataEvents
from radixserve.http.logprobs import chat_logprobs
from radixserve.http.pieces import Arguments, CallBegin, Output, Reasoning, Text
from radixserve.http.usage import UsageTally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.http.pieces import Piece
    from radixserve.http.schemas import ChatRequest
    from radixserve_tokenizer.protocol import Delta, Done, ModelCard, TokenLogprob, ToolCall


class _ChoiceState:
    __slots__ = ("opened", "output")

    def __init__(self) -> None:
        self.opened = False
        self.output = Output()


class ChatWriter:
    """Writes chat answers. A request in the older form (`functions`) gets its one call as `function_call`."""

    def __init__(self, request: ChatRequest, name: str, card: ModelCard) -> None:
        self.form = DataEvents()
        self._older = request.uses_functions
        self._want_usage = bool(request.options().include_usage)
        self._logprobs = bool(request.logprobs)
        self._head = head("chatcmpl", "chat.completion.chunk" if request.stream else "chat.completion", request, name, card)
        self._usage = UsageTally(n=request.n or 1)
        self._states: dict[int, _ChoiceState] = {}

    def whole(self, choices: Sequence[Done]) -> dict[str, Any]:
        """The answer that isn't streamed."""
        written: list[dict[str, Any]] = []
        for index, done in enumerate(choices):
            self._usage.add(index, done.usage)
            message = self._message(done)
            written.append({"index": index, "message": message, "logprobs": self._logprobs_of(done.logprobs), **self._end(done)})
        return {**self._head, "choices": written, "usage": self._usage.body()}

    def delta(self, choice: int, delta: Delta) -> list[dict[str, Any]]:
        """Chunks for new output; none while it is withheld."""
        state = self._state(choice)
        return self._chunks(choice, state, *state.output.delta(delta))

    def done(self, choice: int, done: Done) -> list[dict[str, Any]]:
        """The rest of the output, then the chunk with the finish reason."""
        self._usage.add(choice, done.usage)
        state = self._state(choice)
        chunks = self._chunks(choice, state, *state.output.rest(done))
        return [*chunks, self._chunk({"index": choice, "delta": {}, "logprobs": None, **self._end(done)})]

    def end(self) -> list[dict[str, Any]]:
        """The chunk with the usage, if it was asked for."""
        return [{**self._head, "choices": [], "usage": self._usage.body()}] if self._want_usage else []

    # ---- whole ----------------------------------------------------------------------------------------------------

    def _message(self, done: Done) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": done.value or (None if done.calls else ""), "refusal": None}
        if done.reasoning:
            message["reasoning_content"] = done.reasoning
        if done.calls and self._older:
            message["function_call"] = {"name": done.calls[0].name, "arguments": done.calls[0].arguments}
        elif done.calls:
            message["tool_calls"] = [_call(call) for call in done.calls]
        return message

    def _end(self, done: Done) -> dict[str, Any]:
        end = ending(done)
        if self._older and done.finish_reason == "tool_calls":
            end["finish_reason"] = "function_call"
        return end

    # ---- chunks ---------------------------------------------------------------------------------------------------

    def _state(self, choice: int) -> _ChoiceState:
        return self._states.setdefault(choice, _ChoiceState())

    def _chunks(
        self, choice: int, state: _ChoiceState, pieces: list[Piece], logprobs: Sequence[TokenLogprob]
    ) -> list[dict[str, Any]]:
        deltas = [self._delta_of(piece) for piece in pieces]
        if self._logprobs and logprobs and not deltas:
            deltas.append({"content": ""})  # tokens without text of their own
        chunks: list[dict[str, Any]] = []
        if not state.opened:
            state.opened = True
            calls_first = bool(pieces) and isinstance(pieces[0], CallBegin)
            chunks.append(self._chunk(_piece(choice, {"role": "assistant", "content": None if calls_first else ""})))
        for number, delta in enumerate(deltas):
            # All tokens of a delta of ours are told of with its first chunk.
            told = self._logprobs_of(logprobs) if number == 0 and logprobs else None
            chunks.append(self._chunk({**_piece(choice, delta), "logprobs": told}))
        return chunks

    def _delta_of(self, piece: Piece) -> dict[str, Any]:
        match piece:
            case Text(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case CallBegin(index, id_, name):
                function = {"name": name, "arguments": ""}
                if self._older:
                    return {"function_call": function}
                return {"tool_calls": [{"index": index, "id": id_, "type": "function", "function": function}]}
            case Arguments(index, text):
                if self._older:
                    return {"function_call": {"arguments": text}}
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "choices": [choice]}
        if self._want_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs_of(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(entries) if self._logprobs else None


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _piece(choice: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
