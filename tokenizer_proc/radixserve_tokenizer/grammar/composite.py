"""Grammars written around other grammars: tool calls around the schemas of their arguments, an answer after reasoning.

A composite is EBNF text in which the rule `part0` stands for the first part, `part1` for the second, and so on. Each part
is a prepared constraint; the compiler turns it into rules of its own, whose names can't meet those of another part.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.grammar.prepare import Prepared

#: A literal, a class or a word of a grammar's printed text. Only words can be names of rules.
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[A-Za-z_][A-Za-z0-9_.-]*', re.DOTALL)
_DEFINITION = re.compile(r"^([A-Za-z_][A-Za-z0-9_.-]*)(?:\[[^\]]*\])? ::= ", re.MULTILINE)
#: Rules that every converted schema brings, the same in all of them.
_COMMON = "basic_"


class Part(NamedTuple):
    """One grammar inside another. `label` says in an error what it belongs to, `param` is its path in the request."""

    label: str
    prepared: Prepared
    param: str = "constraint"


@dataclass(frozen=True)
class Composite:
    """A checked grammar with others in it."""

    text: str
    parts: tuple[Part, ...]
    kind: ClassVar[Literal["composite"]] = "composite"

    @cached_property
    def source(self) -> str:
        """All of it, as the compiler gets it."""
        parts = [{"label": part.label, "kind": part.prepared.kind, "source": part.prepared.source} for part in self.parts]
        return json.dumps({"text": self.text, "parts": parts}, ensure_ascii=False, separators=(",", ":"))

    def param_of(self, message: str) -> str:
        """The path in the request of the part that an error of the compiler is about."""
        return next((part.param for part in self.parts if message.startswith(f"{part.label}: ")), "constraint")


def part_name(index: int) -> str:
    """The rule that stands for a part."""
    return f"part{index}"


def join(text: str, parts: Sequence[tuple[str, bool]]) -> str:
    """One grammar's text of an outer one and its parts, each with whether it is a converted schema.

    Every part's rules get a prefix, but what all schemas have in common is written once.
    """
    common: dict[str, str] = {}
    bodies: list[str] = []
    for index, (part, is_schema) in enumerate(parts):
        prefix = part_name(index)
        defined = _DEFINITION.findall(part)
        own = {name: prefix if name == "root" else f"{prefix}_{name}" for name in defined}
        if is_schema:
            shared = _common_rules(part)
            if all(common.setdefault(name, body) == body for name, body in shared.items()):
                own = {name: new for name, new in own.items() if name not in shared}
                part = "\n".join(line for line in part.split("\n") if line.partition(" ::= ")[0] not in shared)
        bodies.append(_rename(part, own))
    return "\n".join([text, *bodies, *common.values()]) + "\n"


def _common_rules(part: str) -> dict[str, str]:
    """The lines of the rules that are the same whatever the schema, by name."""
    lines = (line for line in part.split("\n") if line.startswith(_COMMON) and " ::= " in line)
    return {line.partition(" ::= ")[0]: line for line in lines}


def _rename(text: str, names: Mapping[str, str]) -> str:
    return _TOKEN.sub(lambda found: names.get(found[0], found[0]), text)
