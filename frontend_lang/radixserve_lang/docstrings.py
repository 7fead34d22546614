"""What a docstring says of a function and of its parameters; Google, NumPy and Sphinx styles."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import docstring_parser

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Described:
    """Texts for people and models; empty where nothing is said."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict[str, str])


def described(function: Callable[..., Any]) -> Described:
    """Read a function's docstring. One that no style fits is the description as it stands."""
    text = inspect.getdoc(function) or ""
    if not text:
        return Described()
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return Described(text)
    parameters = {entry.arg_name.lstrip("*"): (entry.description or "").strip() for entry in parsed.params}
    return Described((parsed.description or "").strip(), {name: said for name, said in parameters.items() if said})
