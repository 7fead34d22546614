"""Structural tags: texts in which schemas and grammars begin and end with given words, as vLLM, SGLang and xgrammar describe them.

Two forms are read: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, and `{"format": ...}` with formats inside one
another. What is in them is checked and written as any other constraint is; a kind of format that isn't known is refused by name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.grammar.composite import Composite, Part, part_name
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.patterns import literal_rule
from radixserve_tokenizer.protocol import Constraint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve_tokenizer.grammar.prepare import Prepared

    Prepare = Callable[[Constraint], Prepared]

MAX_SOURCE_BYTES = 512 << 10
MAX_FORMATS = 512
MAX_NESTING = 32
MAX_REPEATED = 100
_TEXTS = ("const_string", "json_schema", "regex", "grammar", "any_text")
_AROUND = ("sequence", "or", "optional", "star", "plus", "repeat", "tag", "triggered_tags", "tags_with_separator")


def structural_composite(source: str, prepare: Prepare) -> Composite:
    """The grammar of a structural tag (JSON text); raises `ConstraintError` with the pointer of what can't be enforced."""
    if len(source) > MAX_SOURCE_BYTES:
        raise ConstraintError(f"it is larger than {MAX_SOURCE_BYTES} bytes", "")
    try:
        found = json.loads(source)
        source.encode()
    except (ValueError, RecursionError) as error:
        raise ConstraintError("a structural tag must be valid JSON", "") from error
    if not isinstance(found, dict):
        raise ConstraintError("a structural tag must be an object", "")
    writer = _Writer(prepare)
    if "format" in found:
        root = writer.format(found["format"], "/format", ())
    elif "structures" in found:
        root = writer.older(found)
    else:
        raise ConstraintError("a structural tag has a 'format', or 'structures' with 'triggers'", "")
    return Composite("\n".join([*writer.rules, f"root ::= {root}", ""]), tuple(writer.parts))


class _Writer:
    def __init__(self, prepare: Prepare) -> None:
        self.rules: list[str] = []
        self.parts: list[Part] = []
        self._prepare = prepare
        self._nesting = 0
        self._num_formats = 0

    def format(self, node: Any, pointer: str, ends: tuple[str, ...]) -> str:
        """An EBNF expression. `ends`: what free text at its end must not contain, as it stands behind it."""
        kind = node.get("type") if isinstance(node, dict) else None
        if kind not in (*_TEXTS, *_AROUND):
            known = ", ".join((*_TEXTS, *_AROUND))
            raise ConstraintError(f"a format of the type {kind!r} can't be enforced; known: {known}", f"{pointer}/type")
        self._num_formats += 1
        if self._num_formats > MAX_FORMATS or self._nesting >= MAX_NESTING:
            raise ConstraintError(f"more than {MAX_FORMATS} formats, or more than {MAX_NESTING} inside one another", pointer)
        self._nesting += 1
        written = self._text(node, pointer, ends) if kind in _TEXTS else self._around(node, pointer, ends)
        self._nesting -= 1
        return written

    def _text(self, node: dict[str, Any], pointer: str, ends: tuple[str, ...]) -> str:
        match node["type"]:
            case "const_string":
                _only(node, pointer, "value")
                return literal_rule(_string(node, "value", pointer))
            case "json_schema":
                _only(node, pointer, "json_schema", style="json", any_order=False, max_whitespace_cnt=None, excludes=[])
                return self._schema(node.get("json_schema"), f"{pointer}/json_schema")
            case "regex":
                _only(node, pointer, "pattern", excludes=[])
                return self._part(Constraint(kind="regex", source=_string(node, "pattern", pointer)), f"{pointer}/pattern")
            case "grammar":
                _only(node, pointer, "grammar", syntax="ebnf")
                return self._part(Constraint(kind="ebnf", source=_string(node, "grammar", pointer)), f"{pointer}/grammar")
            case _:
                _only(node, pointer, "excludes", max_tokens=None, max_chars=None)
                return self._free((), (*_strings(node, "excludes", pointer, default=()), *ends))

    def _around(self, node: dict[str, Any], pointer: str, ends: tuple[str, ...]) -> str:
        match node["type"]:
            case "sequence":
                _only(node, pointer, "elements")
                elements = _items(node, "elements", pointer)
                last = len(elements) - 1
                return " ".join(
                    self.format(one, f"{pointer}/elements/{index}", ends if index == last else ())
                    for index, one in enumerate(elements)
                )
            case "or":
                _only(node, pointer, "elements")
                options = enumerate(_items(node, "elements", pointer))
                return f"({' | '.join(self.format(one, f'{pointer}/elements/{index}', ends) for index, one in options)})"
            case "tag":
                return self._tag(node, pointer, "")
            case "triggered_tags":
                return self._triggered(node, pointer, ends)
            case "tags_with_separator":
                return self._separated(node, pointer)
            case _:
                return self._repeated(node, pointer, ends)

    def _repeated(self, node: dict[str, Any], pointer: str, ends: tuple[str, ...]) -> str:
        if node["type"] != "repeat":
            _only(node, pointer, "content")
            count = {"optional": "?", "star": "*", "plus": "+"}[node["type"]]
        else:
            _only(node, pointer, "content", "min", "max")
            low, high = (_count(node, name, pointer) for name in ("min", "max"))
            if low > high:
                raise ConstraintError("'min' is above 'max'", pointer)
            count = f"{{{low},{high}}}"
        # A rule of its own, so that a sequence in it stays together.
        return f"{self._rule(self.format(node.get('content'), f'{pointer}/content', ends))}{count}"

    def _tag(self, node: Any, pointer: str, begun: str) -> str:
        """A tag whose beginning was written as far as `begun`."""
        if not isinstance(node, dict) or node.get("type", "tag") != "tag":
            raise ConstraintError("it must be a format of the type 'tag'", pointer)
        _only(node, pointer, "begin", "content", "end")
        begin = _string(node, "begin", pointer)
        ends = (node["end"],) if isinstance(node.get("end"), str) else _strings(node, "end", pointer)
        content = self.format(node.get("content"), f"{pointer}/content", tuple(end for end in ends if end))
        return self._tag_text(begin[len(begun) :], content, ends)

    def _tag_text(self, begin: str, content: str, ends: Sequence[str]) -> str:
        return self._rule(f"{literal_rule(begin)} {content} ({' | '.join(map(literal_rule, ends))})")

    def _separated(self, node: dict[str, Any], pointer: str) -> str:
        _only(node, pointer, "tags", "separator", at_least_one=..., stop_after_first=...)
        tags = [self._tag(one, f"{pointer}/tags/{index}", "") for index, one in enumerate(_items(node, "tags", pointer))]
        one = f"({' | '.join(tags)})"
        more = (
            "" if _flag(node, "stop_after_first", pointer) else f" ({literal_rule(_string(node, 'separator', pointer))} {one})*"
        )
        return f"({one}{more}){'' if _flag(node, 'at_least_one', pointer) else '?'}"

    def _triggered(self, node: dict[str, Any], pointer: str, ends: tuple[str, ...]) -> str:
        _only(node, pointer, "triggers", "tags", "excludes", at_least_one=..., stop_after_first=...)
        tags = _items(node, "tags", pointer)
        excludes = (*_strings(node, "excludes", pointer, default=()), *ends)
        begins = [
            _string(one, "begin", f"{pointer}/tags/{index}") if isinstance(one, dict) else "" for index, one in enumerate(tags)
        ]
        by_trigger = self._by_trigger(
            _strings(node, "triggers", pointer), begins, f"{pointer}/tags", lambda index, begun: self._tag(tags[index], f"{pointer}/tags/{index}", begun)
        )  # fmt: skip
        return self._dispatch(
            by_trigger,
            excludes,
            at_least_one=_flag(node, "at_least_one", pointer),
            stops=_flag(node, "stop_after_first", pointer),
        )

    def older(self, found: dict[str, Any]) -> str:
        """The form with structures."""
        _only(found, "", "structures", "triggers")
        structures = _items(found, "structures", "")
        begins = [
            _string(one, "begin", f"/structures/{index}") if isinstance(one, dict) else "" for index, one in enumerate(structures)
        ]

        def write(index: int, begun: str) -> str:
            pointer = f"/structures/{index}"
            _only(structures[index], pointer, "begin", "schema", "end", type=...)
            content = self._schema(structures[index].get("schema"), f"{pointer}/schema")
            return self._tag_text(begins[index][len(begun) :], content, (_string(structures[index], "end", pointer),))

        return self._dispatch(
            self._by_trigger(_strings(found, "triggers", ""), begins, "/structures", write), (), at_least_one=False, stops=False
        )

    @staticmethod
    def _by_trigger(
        triggers: Sequence[str], begins: Sequence[str], pointer: str, write: Callable[[int, str], str]
    ) -> dict[str, list[str]]:
        """Rules of tags by what begins them: each has exactly one trigger."""
        found: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        for index, begin in enumerate(begins):
            fitting = [trigger for trigger in found if trigger and begin.startswith(trigger)]
            if len(fitting) != 1:
                raise ConstraintError(
                    f"'begin' must begin with exactly one of the triggers, not {len(fitting)}", f"{pointer}/{index}"
                )
            found[fitting[0]].append(write(index, fitting[0]))
        unused = [trigger for trigger, tags in found.items() if not tags]
        if unused:
            raise ConstraintError(f"no tag begins with the trigger {unused[0]!r}", pointer)
        return found

    def _dispatch(self, tags: dict[str, list[str]], excludes: Sequence[str], *, at_least_one: bool, stops: bool) -> str:
        """Free text with tags in it. Where at least one is asked for, it comes first."""
        by_trigger = [(trigger, self._rule(" | ".join(rules))) for trigger, rules in tags.items()]
        first = f"({' | '.join(f'{literal_rule(trigger)} {rule}' for trigger, rule in by_trigger)})"
        if stops and at_least_one:
            return first
        rest = self._free(by_trigger, excludes, loops=not stops)
        return f"{first} {rest}" if at_least_one else rest

    def _free(self, triggers: Sequence[tuple[str, str]], excludes: Sequence[str], *, loops: bool = False) -> str:
        pairs = "".join(f"({literal_rule(trigger)}, {rule}), " for trigger, rule in triggers)
        unwanted = ", ".join(literal_rule(one) for one in dict.fromkeys(excludes) if one)
        return self._rule(f"TagDispatch({pairs}loop_after_dispatch={'true' if loops else 'false'}, excludes=({unwanted}))")

    def _schema(self, schema: Any, pointer: str) -> str:
        if not isinstance(schema, dict | bool):
            raise ConstraintError("it must be a JSON Schema", pointer)
        return self._part(Constraint(kind="json_schema", source=json.dumps(schema, ensure_ascii=False)), pointer)

    def _part(self, constraint: Constraint, pointer: str) -> str:
        try:
            prepared = self._prepare(constraint)
        except ConstraintError as error:
            raise ConstraintError(str(error), pointer) from error
        self.parts.append(Part(pointer, prepared))
        return part_name(len(self.parts) - 1)

    def _rule(self, body: str) -> str:
        name = f"tag{len(self.rules)}"
        self.rules.append(f"{name} ::= {body}")
        return name


def _only(node: dict[str, Any], pointer: str, *names: str, **harmless: Any) -> None:
    """Raise for fields that aren't known, and for those of which only one value can be enforced (...: any)."""
    for name, value in node.items():
        if name in (*names, "type"):
            continue
        if name not in harmless or (harmless[name] is not ... and value != harmless[name] and value is not None):
            raise ConstraintError(f"{name!r} can't be enforced here", f"{pointer}/{name}")


def _string(node: dict[str, Any], name: str, pointer: str) -> str:
    value = node.get(name)
    if not isinstance(value, str):
        raise ConstraintError(f"{name!r} must be a string", f"{pointer}/{name}")
    return value


def _items(node: dict[str, Any], name: str, pointer: str) -> list[Any]:
    value = node.get(name)
    if not isinstance(value, list) or not value:
        raise ConstraintError(f"{name!r} must be a list that is not empty", f"{pointer}/{name}")
    return value


def _strings(node: dict[str, Any], name: str, pointer: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
    if default is not None and node.get(name) in (None, []):
        return default
    value = _items(node, name, pointer)
    if not all(isinstance(one, str) for one in value):
        raise ConstraintError(f"{name!r} must be a list of strings", f"{pointer}/{name}")
    return tuple(value)


def _flag(node: dict[str, Any], name: str, pointer: str) -> bool:
    value = node.get(name, False)
    if not isinstance(value, bool):
        raise ConstraintError(f"{name!r} must be true or false", f"{pointer}/{name}")
    return value


def _count(node: dict[str, Any], name: str, pointer: str) -> int:
    value = node.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_REPEATED:
        raise ConstraintError(f"{name!r} must be a whole number from 0 to {MAX_REPEATED}", f"{pointer}/{name}")
    return value
