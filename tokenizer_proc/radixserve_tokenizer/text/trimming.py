"""What a template cuts off a message's content.

Inputs are single characters while a template renders, so a template's `trim` would find nothing to trim. Whether it trims
is found out once, by contents with white space around them, and then done to the inputs.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from radixserve_tokenizer.text.errors import TemplateError

if TYPE_CHECKING:
    from radixserve_tokenizer.text.inputs import Content
    from radixserve_tokenizer.text.jinja import Renderer

_PROBE = "\U000f0000"

_CALLS = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {}}}]
_USER = {"role": "user", "content": "u"}

#: For each role, conversations around a message of that role; the first one that the template renders is used.
_SETTINGS: dict[str, list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]] = {
    "system": [([], [_USER])],
    "developer": [([], [_USER])],
    "user": [([], []), ([{"role": "system", "content": "s"}], [])],
    "assistant": [([_USER], [_USER]), ([_USER], [])],
    "tool": [([_USER, {"role": "assistant", "content": "", "tool_calls": _CALLS}], [])],
    "function": [([_USER, {"role": "assistant", "content": "", "tool_calls": _CALLS}], [])],
}


class Trimming(NamedTuple):
    """Characters that a template takes off each end of a content: None nothing, "" all white space."""

    left: str | None
    right: str | None

    def __call__(self, content: Content) -> Content:
        """Trim a content's text at its ends; ids are never touched."""
        pieces = list(content)
        if self.left is not None and pieces and isinstance(pieces[0], str):
            pieces[0] = pieces[0].lstrip(self.left or None)
        if self.right is not None and pieces and isinstance(pieces[-1], str):
            pieces[-1] = pieces[-1].rstrip(self.right or None)
        return tuple(piece for piece in pieces if piece)


def probe_trimming(renderer: Renderer) -> dict[str, Trimming]:
    """How the template trims each role's content; roles that it leaves alone, or does not know, are not there."""
    found: dict[str, Trimming] = {}
    for role, settings in _SETTINGS.items():
        for before, after in settings:
            trimming = _probe(renderer, role, before, after)
            if trimming is not None:
                if trimming != (None, None):
                    found[role] = trimming
                break
    return found


def _probe(renderer: Renderer, role: str, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Trimming | None:
    """How one message is trimmed; None when the template does not render it."""

    def around(space: str) -> tuple[str, str]:
        message = {"role": role, "content": space + _PROBE + space, "name": "look", "tool_call_id": "call_1"}
        left, _, right = renderer.render([*before, message, *after], now=datetime.now().astimezone()).partition(_PROBE)
        return left, right

    try:
        bare_left, bare_right = around("")
        line_left, line_right = around("\n")
        space_left, space_right = around(" ")
    except TemplateError:
        return None
    return Trimming(
        _characters(newline=line_left == bare_left, space=space_left == bare_left),
        _characters(newline=line_right == bare_right, space=space_right == bare_right),
    )


def _characters(*, newline: bool, space: bool) -> str | None:
    if newline and space:
        return ""
    return "\n" if newline else " " if space else None
