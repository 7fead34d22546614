"""Whether a constraint's texts can be told from calls: an output that begins like a call must be one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.regex import Chars, Choice, Concat, Node, RegexError, Repeat, parse
from radixserve_tokenizer.tools.errors import ToolError

if TYPE_CHECKING:
    from radixserve_tokenizer.protocol import Constraint
    from radixserve_tokenizer.tools.marks import Mark

_JSON_STARTS = '{["-0123456789tfn'


def check_beside_calls(constraint: Constraint, trigger: Mark) -> None:
    """Raise `ToolError` where an output of the constraint could begin with the mark before calls. Its own errors come later."""
    if trigger.is_token and constraint.kind not in ("ebnf", "structural_tag"):
        return
    first = trigger.text[0]
    match constraint.kind:
        case "json_object" | "json_schema" | "open_json_schema":
            clashes = first in _JSON_STARTS
        case "choice":
            clashes = first in {text[:1] for text in _choices(constraint.source)}
        case "regex":
            clashes = _may_begin_with(constraint.source, first)
        case "ebnf" | "structural_tag":
            clashes = True  # what it begins with isn't known here
    if clashes:
        raise ToolError(
            f"this {constraint.kind} constraint can't stand beside tools: its output could begin like a call ({trigger.text}); "
            "use a JSON schema, or leave the tools or the constraint out",
            "constraint",
        )


def _choices(source: str) -> list[str]:
    try:
        found = json.loads(source)
    except (ValueError, RecursionError):
        return []
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _may_begin_with(source: str, char: str) -> bool:
    try:
        return _begins(parse(source), char)[0]
    except RegexError:
        return False


def _begins(node: Node, char: str) -> tuple[bool, bool]:
    """Whether a text of the node may begin with `char`, and whether it may be empty."""
    match node:
        case Chars(found):
            return char in found, False
        case Concat(parts):
            for part in parts:
                begins, empty = _begins(part, char)
                if begins or not empty:
                    return begins, empty
            return False, True
        case Choice(options):
            found_in = [_begins(option, char) for option in options]
            return any(begins for begins, _ in found_in), any(empty for _, empty in found_in)
        case Repeat(inner, low, _):
            begins, empty = _begins(inner, char)
            return begins, empty or low == 0
        case _:
            return False, True  # an anchor
