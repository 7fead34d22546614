"""What a native format of tool calls is: how tools and calls are shown, which grammar calls have, and who reads them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

from radixserve_tokenizer.grammar.patterns import literal_rule
from radixserve_tokenizer.tools.clash import check_beside_calls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.grammar.composite import Part
    from radixserve_tokenizer.protocol import Constraint
    from radixserve_tokenizer.tools.marks import Mark
    from radixserve_tokenizer.tools.parser import CallParser, OutputSink
    from radixserve_tokenizer.tools.toolset import Tool

Use: TypeAlias = Literal["free", "required", "beside"]
"""Calls come in free text, alone, or in place of what a constraint asks for."""

#: Most calls of one turn, so that a model which goes on calling ends before its context does.
MAX_CALLS = 32


class CallGrammar(NamedTuple):
    """What follows the trigger, to the end of the output: the rule `calls`, in EBNF, over parts that stand for arguments."""

    text: str
    parts: tuple[Part, ...]


class ToolFormat(ABC):
    """One native format, for one tokenizer."""

    name: ClassVar[str]
    max_calls: ClassVar[int] = MAX_CALLS

    def __init__(self, special: Mapping[str, int]) -> None:
        """`special`: the tokenizer's control tokens by text."""
        self.special = special

    @property
    @abstractmethod
    def trigger(self) -> Mark:
        """What begins calls."""

    @property
    def control_marks(self) -> tuple[Mark, ...]:
        """Marks of the format that are control tokens: a grammar has to allow them by number."""
        return (self.trigger,) if self.trigger.is_token else ()

    @abstractmethod
    def grammar(self, tools: Sequence[Tool], most: int) -> CallGrammar:
        """The grammar of one to `most` calls of these tools, behind the trigger. Raises `ToolError`."""

    def free(self) -> str:
        """Rules, the last of them `root`: any text, and calls (rule `calls`) once the trigger comes."""
        trigger = self.trigger
        if trigger.is_token:
            others = ", ".join(str(each.token_id) for each in self.control_marks if each != trigger)
            text = f"TokenTagDispatch(({trigger.token_id}, calls), loop_after_dispatch=false, excludes=({others}))"
        else:
            text = f"TagDispatch(({literal_rule(trigger.text)}, calls), loop_after_dispatch=false, excludes=())"
        return f"free ::= {text}\nroot ::= free"

    def forced(self) -> str:
        """An EBNF expression: calls and nothing else."""
        return f"{self.trigger.rule} calls"

    def beside(self, constraint: Constraint) -> str:
        """An EBNF expression: calls that can be told from whatever matches a constraint. Raises `ToolError`."""
        check_beside_calls(constraint, self.trigger)
        return self.forced()

    @abstractmethod
    def parser(self, sink: OutputSink, tools: Sequence[Tool], use: Use) -> CallParser:
        """A parser for one output with calls of these tools."""

    # ---- where the model's template knows no tools -----------------------------------------------------------------

    @abstractmethod
    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """What the system message says about the tools (OpenAI's definitions)."""

    def examples(self, tools: Sequence[Mapping[str, Any]]) -> Sequence[tuple[str, str]]:
        """Turns (role, text) that are shown before the conversation, where telling the model how to call is not enough."""
        return ()

    @abstractmethod
    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Past calls (name, arguments as an object or text) as the model would have written them."""

    def result_text(self, text: str, name: str) -> str:
        """A tool's result, in a message of the user's side. `name` is the tool's, or empty."""
        return f"<tool_response>\n{text}\n</tool_response>"


def to_json(value: Any) -> str:
    """JSON with one way of white space, the same as grammars allow."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def call_json(name: str, arguments: Any, key: str = "arguments") -> str:
    """One call object. Arguments that are text already stand as they are."""
    text = arguments if isinstance(arguments, str) else to_json(arguments)
    return f"{{{to_json('name')}: {to_json(name)}, {to_json(key)}: {text}}}"
