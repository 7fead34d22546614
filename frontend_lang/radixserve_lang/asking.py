"""What one `gen` asks for: how its text is constrained, what its value is, and how that is checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec

from radixserve_lang.calls import CallReader
from radixserve_lang.sampling import SamplingArgs, to_sampling
from radixserve_lang.schema import output_type
from radixserve_lang.threads import is_async
from radixserve_lang.tools import as_tools
from radixserve_lang.verdicts import Check
from radixserve_tokenizer.protocol import Constraint, Sampling, ToolUse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from radixserve_lang.tools import AnyTool
    from radixserve_tokenizer.protocol import Done, ToolSpec

#: What `gen` takes besides sampling arguments.
_OWN = ("json", "regex", "grammar", "tools", "tool_choice", "parallel", "retries", "validate", "n")
_SEED_MODULUS = 1 << 63


@dataclass(frozen=True, slots=True)
class Asked:
    """One generation, before it has a place in a program."""

    sampling: Sampling
    constraint: Constraint | None
    convert: Callable[[Done], Any]
    tools: tuple[AnyTool[Any], ...]
    needs_call: bool
    parallel: bool
    retries: int
    validate: Callable[[Any], object] | None
    count: int | None

    def reader(self, place: str) -> Callable[[Done], Any]:
        """From the end of the op at `place` to its value; ValueError when there is none."""
        if not self.tools:
            return self.convert
        named = {tool.name: tool for tool in self.tools}
        return CallReader(named, place, needs_call=self.needs_call, parallel=self.parallel)

    def check(self, parse: Callable[[Done], Any], tools: tuple[ToolSpec, ...]) -> Check | None:
        """How its value is judged before anything goes on from it; None if it is not."""
        if not self.retries and self.validate is None:
            return None
        same = self.retries and (self.sampling.temperature == 0 or self.sampling.top_k == 1 or self.sampling.top_p == 0)
        advice = "Greedy attempts are all the same: raise the temperature." if same else "Ask for less, or allow more retries."
        return Check(parse, self.validate, self.retries, advice, tools)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Its tools as the server gets them."""
        return tuple(tool.spec for tool in self.tools)

    def use_of(self, offered: tuple[ToolSpec, ...]) -> ToolUse | None:
        """How it may call them, on a branch that offers these; None without tools."""
        if not self.tools:
            return None
        own = self.specs()
        names = () if own == offered else tuple(spec.name for spec in own)
        return ToolUse(mode="required" if self.needs_call else "auto", names=names, parallel=self.parallel)

    def drawing(self, attempt: int) -> Sampling:
        """Sampling of an attempt. One with a seed of its own gets another for each, as those without get one by their place."""
        if attempt == 0 or self.sampling.seed is None:
            return self.sampling
        return msgspec.structs.replace(self.sampling, seed=(self.sampling.seed + attempt) % _SEED_MODULUS)


def asked(options: Mapping[str, Any]) -> Asked:
    """From the arguments of `gen`. Raises TypeError and ValueError that name them."""
    own = {name: options[name] for name in _OWN if options.get(name) is not None}
    kinds = [name for name in ("json", "regex", "grammar", "tools") if name in own]
    if len(kinds) > 1:
        raise TypeError(f"gen() takes one of json, regex, grammar and tools, not {' and '.join(kinds)}")
    unknown = [name for name in options if name not in _OWN and name not in SamplingArgs.__annotations__]
    if unknown:
        known = ", ".join((*_OWN, *SamplingArgs.__annotations__))
        raise TypeError(f"gen() got unknown arguments: {', '.join(sorted(unknown))}; it takes {known}")
    sampling = to_sampling(cast("SamplingArgs", {name: value for name, value in options.items() if name not in _OWN}))
    constraint, convert = _constraint(own)
    tools = as_tools(own["tools"]) if "tools" in own else ()
    mode, parallel = own.get("tool_choice"), own.get("parallel")
    if not tools and (mode is not None or parallel is not None):
        raise TypeError("gen() takes tool_choice and parallel only together with tools=")
    if mode not in (None, "required", "auto"):
        raise ValueError(f"tool_choice is 'required' (a call) or 'auto' (a call or text), not {mode!r}")
    return Asked(
        sampling=sampling,
        constraint=constraint,
        convert=convert,
        tools=tools,
        needs_call=mode != "auto",
        parallel=bool(parallel),
        retries=_whole("retries", own.get("retries", 0), 0),
        validate=_validator(own.get("validate")),
        count=_count(own.get("n"), tools),
    )


def _constraint(own: Mapping[str, Any]) -> tuple[Constraint | None, Callable[[Done], Any]]:
    """What goes on the wire, and how the text becomes a value."""
    if "json" in own:
        kind = output_type(own["json"])
        return Constraint(kind="json_schema", source=kind.schema), lambda done: kind.parse(done.value)
    if "regex" in own:
        return Constraint(kind="regex", source=own["regex"]), _text
    if "grammar" in own:
        return Constraint(kind="ebnf", source=own["grammar"]), _text
    return None, _text


def _text(done: Done) -> str:
    return done.value


def _validator(validate: Any) -> Callable[[Any], object] | None:
    if validate is None:
        return None
    if not callable(validate) or is_async(validate):
        raise TypeError(f"validate= takes a plain function of the value, which raises ValueError to refuse it, not {validate!r}")
    return cast("Callable[[Any], object]", validate)


def _count(count: Any, tools: tuple[AnyTool[Any], ...]) -> int | None:
    if count is None:
        return None
    if tools:
        raise TypeError("gen() takes n only without tools; fork first, as in [b.gen(tools=...) for b in s.fork(n)]")
    return _whole("n", count, 1)


def _whole(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"gen({name}={value!r}): a whole number of {least} or more")
    return value
