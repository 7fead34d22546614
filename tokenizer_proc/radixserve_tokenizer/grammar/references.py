"""References inside one schema."""

from __future__ import annotations

from typing import Any

from radixserve_tokenizer.grammar.errors import ConstraintError


class Definitions:
    """The definitions at the root of a schema, and which of them are used."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._used: set[str] | None = None

    def resolve(self, reference: Any, pointer: str) -> str:
        """The reference itself, if it names the root or one definition there; raises `ConstraintError`."""
        if not isinstance(reference, str):
            raise ConstraintError("'$ref' must be a string", pointer)
        if reference != "#" and self.target(reference) is None:
            raise ConstraintError(
                f"keyword '$ref' can't be enforced for {reference!r}: it must be '#' or name a definition at the root, "
                "'#/$defs/NAME' or '#/definitions/NAME' (NAME without '/', '~' and '%')",
                pointer,
            )
        return reference

    def target(self, reference: str) -> Any:
        """The schema that a reference names; None where there is none."""
        if reference == "#":
            return self._root
        parts = reference.split("/")
        if len(parts) != 3 or parts[0] != "#" or parts[1] not in ("$defs", "definitions") or set(parts[2]) & set("~%"):
            return None
        named = self._root.get(parts[1])
        return named.get(parts[2]) if isinstance(named, dict) else None

    def is_used(self, keyword: str, name: str) -> bool:
        """Whether any reference in the schema may name this definition."""
        return f"#/{keyword}/{name}" in self._references()

    def _references(self) -> set[str]:
        """All references in what is reachable from the root, definitions that nothing refers to left out."""
        if self._used is not None:
            return self._used
        found: set[str] = set()
        pending: list[Any] = [{key: value for key, value in self._root.items() if key not in ("$defs", "definitions")}]
        while pending:
            item = pending.pop()
            if isinstance(item, list):
                pending.extend(item)
            elif isinstance(item, dict):
                reference = item.get("$ref")
                if isinstance(reference, str) and reference not in found:
                    found.add(reference)
                    if reference != "#":
                        pending.append(self.target(reference))
                pending.extend(item.values())
        self._used = found
        return found

    def check_cycles(self) -> None:
        """Raises `ConstraintError` where a schema refers to itself without anything in between: it says nothing."""
        done: set[str] = set()
        for reference in sorted(self._references() | {"#"}):
            self._visit(reference, (), done)

    def _visit(self, reference: str, path: tuple[str, ...], done: set[str]) -> None:
        if reference in path:
            raise ConstraintError(f"keyword '$ref' leads from {reference!r} back to itself without a value in between", "")
        if reference in done:
            return
        for direct in _direct_references(self.target(reference)):
            self._visit(direct, (*path, reference), done)
        done.add(reference)


def _direct_references(schema: Any) -> list[str]:
    """References that a value of this schema is checked against at the same place: its own, or through anyOf and the like."""
    if not isinstance(schema, dict):
        return []
    found = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
    for keyword in ("anyOf", "oneOf", "allOf"):
        members = schema.get(keyword)
        for member in members if isinstance(members, list) else []:
            found += _direct_references(member)
    return found
