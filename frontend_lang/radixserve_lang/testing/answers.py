"""What a script may say, and how it becomes an outcome on the wire."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import pydantic_core

from radixserve_lang.errors import OpError
from radixserve_tokenizer.protocol import Done, Failed, FinishReason, Gen, OptionScore, Score, Select, ToolCall

if TYPE_CHECKING:
    from radixserve_lang.testing.desk import Outcome
    from radixserve_lang.testing.questions import Question


class _Running:
    """Its type."""

    def __repr__(self) -> str:
        return "RUNNING"


#: An answer that never comes: the op runs until it is cancelled.
RUNNING: Final = _Running()


@dataclass(frozen=True, slots=True)
class Reply:
    """A generation in detail. `reasoning` is what the model thought apart from the text."""

    text: str
    finish_reason: FinishReason = "stop"
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """The op fails as the engine would let it fail."""

    message: str
    code: str = "scripted"
    status: int = 500
    partial: str = ""
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The model calls tools. Made by `call` and `calls`."""

    made: tuple[tuple[str, str], ...]
    text: str = ""


def call(tool: Any, /, **arguments: Any) -> ToolCalls:
    """A call of `tool` (a tool, a function, or its name) as an answer of the model."""
    name = tool if isinstance(tool, str) else getattr(tool, "name", None) or getattr(tool, "__name__", "")
    if not isinstance(name, str) or not name:
        raise TypeError(f"call() takes a tool or its name first, not {tool!r}")
    return ToolCalls(((name, _to_json(arguments)),))


def calls(*made: ToolCalls, text: str = "") -> ToolCalls:
    """Several calls in one turn, with `text` beside them."""
    return ToolCalls(tuple(one for several in made for one in several.made), text)


#: Text, a value (its JSON is the text), or one of the classes above; an exception lets the op fail; a function gets the
#: text that the branch holds and returns one of these. For `select` an option, for `score` its scores by option.
Answer: TypeAlias = Any


class MismatchError(ValueError):
    """An answer that the engine could not have given."""


def outcome_of(answer: Answer, asked: Question) -> Outcome:
    """As it goes over the wire; raises `MismatchError`. What a function of the script raises lets the op fail."""
    if callable(answer) and not isinstance(answer, type):
        try:
            answer = cast("Callable[[str], Answer]", answer)(asked.text)
        except Exception as error:
            answer = error
    match answer:
        case _Running():
            return None
        case Failure():
            return _failed(answer)
        case OpError():
            return _failed(Failure(answer.message, answer.code, answer.status, answer.partial, answer.retryable))
        case BaseException():
            return _failed(Failure(f"{type(answer).__name__}: {answer}"))
        case _ if isinstance(asked.op, Gen):
            return _generated(answer, asked.op, asked)
        case _:
            return _chosen(answer, asked.op)


def _failed(failure: Failure) -> Failed:
    return Failed(
        program=0,
        op=0,
        code=failure.code,
        message=failure.message,
        status=failure.status,
        partial=failure.partial,
        retryable=failure.retryable,
    )


# ---- generations ---------------------------------------------------------------------------------------------------


def _generated(answer: Answer, op: Gen, asked: Question) -> Done:
    if isinstance(answer, ToolCalls):
        return _called(answer, op, asked)
    reply = answer if isinstance(answer, Reply) else Reply(answer if isinstance(answer, str) else _to_json(answer))
    if op.tool_use is not None and op.tool_use.mode == "required":
        raise MismatchError("this gen must call a tool; answer it with rs.testing.call(tool, ...)")
    if reply.finish_reason == "stop":  # what was cut need not match
        _check_constraint(reply.text, op)
    return Done(program=0, op=0, var=0, value=reply.text, finish_reason=reply.finish_reason, reasoning=reply.reasoning)


def _called(answer: ToolCalls, op: Gen, asked: Question) -> Done:
    if op.tool_use is None:
        raise MismatchError("this gen has no tools, so it can't be answered with calls")
    offered = [tool["name"] for tool in asked.request["tools"]]
    names = op.tool_use.names or tuple(offered)
    for name, _ in answer.made:
        if name not in names:
            raise MismatchError(f"{name!r} is none of this gen's tools: {', '.join(names)}")
    if len(answer.made) > 1 and not op.tool_use.parallel:
        raise MismatchError("this gen makes one call at a time")
    place = ".".join(map(str, (*asked.path, asked.index)))
    made = tuple(ToolCall(id=f"call_{place}_{i}", name=name, arguments=text) for i, (name, text) in enumerate(answer.made))
    return Done(program=0, op=0, var=0, value=answer.text, finish_reason="tool_calls", calls=made)


_SHOWN_CHARS = 200


def _check_constraint(text: str, op: Gen) -> None:
    constraint = op.constraint
    if constraint is None:
        return
    if constraint.kind == "regex" and not re.fullmatch(constraint.source, text):
        raise MismatchError(f"{_shown(text)} does not match regex={constraint.source!r}")
    if constraint.kind in ("json_schema", "json_object"):
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MismatchError(f"{_shown(text)} is no JSON ({error}); give the value itself, as in {{'answer': 4}}") from error
    if constraint.kind == "choice" and text not in json.loads(constraint.source):
        raise MismatchError(f"{_shown(text)} is none of {constraint.source}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")


def _to_json(value: Any) -> str:
    try:
        return pydantic_core.to_json(value).decode()
    except pydantic_core.PydanticSerializationError as error:
        raise MismatchError(f"{value!r} can't be an answer: {error}") from error


# ---- choices -------------------------------------------------------------------------------------------------------


def _chosen(answer: Answer, op: Select | Score) -> Done:
    if isinstance(answer, str):
        if answer not in op.options:
            raise MismatchError(f"{answer!r} is none of the options {list(op.options)}")
        scores = {option: 0.0 if option == answer else -1.0 for option in op.options}
    elif isinstance(answer, Mapping):
        scores = {str(option): float(score) for option, score in answer.items()}
        if set(scores) != set(op.options):
            raise MismatchError(f"scores of {sorted(scores)} were given for the options {sorted(op.options)}")
    else:
        raise MismatchError(f"{answer!r} is no answer of {type(op).__name__.lower()}: give an option, or a score for each")
    best = max(op.options, key=lambda option: scores[option])
    rows = tuple(
        OptionScore(option=option, score=scores[option], logprob_sum=scores[option], num_tokens=1) for option in op.options
    )
    return Done(program=0, op=0, var=0, value=best, scores=rows)
