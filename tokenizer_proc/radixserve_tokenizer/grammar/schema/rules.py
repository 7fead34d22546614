"""A grammar as data: so that what can never be finished is taken out before it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from radixserve_tokenizer.grammar.schema.work import spend


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of EBNF that something always matches."""

    ebnf: str


@dataclass(frozen=True, slots=True)
class Ref:
    """Another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Seq:
    """Parts in a row; none: nothing."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of the options; none: what can't be."""

    options: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Rep:
    """`low` to `high` times; None: any number."""

    inner: Expr
    low: int = 0
    high: int | None = None


Expr: TypeAlias = Text | Ref | Seq | Alt | Rep

NOTHING = Seq(())
NEVER = Alt(())


class Rules:
    """Rules by name."""

    def __init__(self) -> None:
        self.bodies: dict[str, Expr] = {}

    def new(self, body: Expr, name: str = "") -> Ref:
        """A rule of its own for this."""
        spend(20)
        name = name or f"r{len(self.bodies)}"
        self.bodies[name] = body
        return Ref(name)

    def reserve(self) -> Ref:
        """A rule whose body follows."""
        return self.new(NEVER)

    def text(self, root: Ref) -> str | None:
        """The grammar as EBNF, without what can't be finished or isn't reached; None if nothing is left."""
        finite = _finite(self.bodies)
        if root.name not in finite:
            return None
        names = {name: self._meant(name) for name in finite}
        lines: list[str] = []
        seen, pending = {root.name}, [root.name]
        while pending:
            name = pending.pop()
            body = _pruned(self.bodies[name], names)
            assert body is not None
            lines.append(f"{'root' if name == root.name else name} ::= {_write(body, outermost=True)}")
            for other in sorted(_references(body) - seen):
                seen.add(other)
                pending.append(other)
        if _refers(self.bodies, seen, root.name):
            lines.append(f"{root.name} ::= root")
        return "\n".join(lines) + "\n"

    def _meant(self, name: str) -> str:
        """What a rule that is nothing but another one's name comes down to."""
        seen = {name}
        while isinstance(body := self.bodies[name], Ref) and body.name not in seen:
            name = body.name
            seen.add(name)
        return name


def _refers(bodies: dict[str, Expr], names: set[str], root: str) -> bool:
    return any(root in _references(bodies[name]) for name in names)


def _finite(bodies: dict[str, Expr]) -> set[str]:
    """Rules that some text of finite length matches: the least set that is closed."""
    users: dict[str, list[str]] = {}
    for name, body in bodies.items():
        for other in _references(body):
            users.setdefault(other, []).append(name)
    found: set[str] = set()
    pending = list(bodies)
    while pending:
        name = pending.pop()
        if name not in found and _is_finite(bodies[name], found):
            found.add(name)
            pending += users.get(name, ())
    return found


def _is_finite(expr: Expr, finite: set[str]) -> bool:
    match expr:
        case Text():
            return True
        case Ref(name):
            return name in finite
        case Seq(parts):
            return all(_is_finite(part, finite) for part in parts)
        case Alt(options):
            return any(_is_finite(option, finite) for option in options)
        case Rep(inner, low, _):
            return low == 0 or _is_finite(inner, finite)


def _pruned(expr: Expr, finite: dict[str, str]) -> Expr | None:
    """Without the options that can't be finished; None if nothing is left. `finite`: rules that can be, and what they are called."""
    match expr:
        case Text():
            return expr
        case Ref(name):
            return Ref(finite[name]) if name in finite else None
        case Seq(parts):
            kept = [_pruned(part, finite) for part in parts]
            whole = tuple(part for part in kept if part is not None)
            return Seq(whole) if len(whole) == len(kept) else None
        case Alt(options):
            left = [found for option in options if (found := _pruned(option, finite)) is not None]
            return None if not left else left[0] if len(left) == 1 else Alt(tuple(left))
        case Rep(inner, low, high):
            found = _pruned(inner, finite)
            if found is None:
                return NOTHING if low == 0 else None
            return Rep(found, low, high)


def _references(expr: Expr) -> set[str]:
    match expr:
        case Text():
            return set()
        case Ref(name):
            return {name}
        case Seq(parts) | Alt(parts):
            return set[str]().union(*map(_references, parts))
        case Rep(inner, _, _):
            return _references(inner)


def _write(expr: Expr, *, outermost: bool = False) -> str:
    match expr:
        case Text(ebnf):
            return ebnf
        case Ref(name):
            return name
        case Seq(parts):
            return " ".join(map(_write, parts)) or '""'
        case Alt(options):
            text = " | ".join(map(_write, options))
            return text if outermost else f"({text})"
        case Rep(inner, low, high):
            names: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?"}
            count = names.get((low, high)) or f"{{{low},{'' if high is None else high}}}"
            return f"({_write(inner)}){count}"
