"""What can be appended to a branch: text, values and whole messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from radixserve_lang.var import Var

#: Text, or a value that the server fills in.
Part: TypeAlias = str | Var[Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """One message of a conversation. It is immutable: make it once, append it to any number of branches and programs."""

    role: str
    parts: tuple[Part, ...]
    fields: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Further fields that the chat template may use."""


#: The right side of `s += ...`: text or a value (raw, no role), a message, or several of these.
Appendable: TypeAlias = Part | Segment | Sequence[Part | Segment]


def system(*parts: Part) -> Segment:
    """A system message."""
    return _segment("system", parts)


def user(*parts: Part) -> Segment:
    """A user message; `rs.user("Merge:", a, b)` mixes text and values."""
    return _segment("user", parts)


def assistant(*parts: Part) -> Segment:
    """A whole assistant message, as an example to follow. What the model is to write comes from `gen`."""
    return _segment("assistant", parts)


def message(role: str, *parts: Part, **fields: Any) -> Segment:
    """A message of any role that the model's template knows ("tool", "developer", ...), with further fields such as `name` or `tool_call_id`."""
    return Segment(role, _segment(role, parts).parts, fields)


def flatten(value: Appendable) -> list[Part | Segment]:
    """The pieces in order; raises TypeError for what can't be appended."""
    if isinstance(value, str | Var | Segment):
        return [value]
    if isinstance(value, list | tuple):
        return [piece for item in cast("Sequence[Appendable]", value) for piece in flatten(item)]
    raise TypeError(_wrong("appended to a branch", value))


def _segment(role: str, parts: tuple[Part, ...]) -> Segment:
    for part in parts:
        if not isinstance(part, str | Var):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(_wrong(f"part of a {role} message", part))
    return Segment(role, parts)


def _wrong(how: str, value: object) -> str:
    hint = "pass *parts instead of the list" if isinstance(value, list | tuple) else "convert it with str() first"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name} can't be {how}: only text, Vars and messages can; {hint}"
