"""What one generation may write and how it is read: tools, a constraint and reasoning, brought together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.composite import Composite, Part, part_name
from radixserve_tokenizer.grammar.prepare import prepare
from radixserve_tokenizer.tools.errors import ToolError
from radixserve_tokenizer.tools.ids import call_id
from radixserve_tokenizer.tools.reader import OutputReader, PlainText
from radixserve_tokenizer.tools.reasoning import ReasoningParser

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve_tokenizer.protocol import Constraint, ToolUse
    from radixserve_tokenizer.text.tokenizer import TextTokenizer
    from radixserve_tokenizer.tools.format import CallGrammar, ToolFormat, Use
    from radixserve_tokenizer.tools.reasoning import After, ReasoningMarks, Stage
    from radixserve_tokenizer.tools.toolset import Tool, ToolSet


@dataclass(frozen=True)
class OutputPlan:
    """Made when a generation begins."""

    grammar: Constraint | Composite | None = None
    """None: anything goes."""
    format: ToolFormat | None = None
    """The format of calls, where there may be some."""
    tools: tuple[Tool, ...] = ()
    use: Use = "free"
    id_length: int = 0
    """How long ids of calls have to be for the model's template; 0: any length."""
    reasoning: ReasoningMarks | None = None
    stage: Stage = "after"

    @property
    def calls_only(self) -> bool:
        """Nothing but calls may come: stop strings have no place."""
        return self.format is not None and self.use == "required"

    @property
    def is_plain(self) -> bool:
        """The output is text and nothing else."""
        return self.format is None and self.reasoning is None

    def reader(
        self, tokenizer: TextTokenizer, place: str, prompt_tail: bytes, special_text: Mapping[int, bytes] | None
    ) -> OutputReader:
        """A fresh reader of this output; ids of calls are made from `place`."""
        marks = (*(self.format.control_marks if self.format else ()), *(self.reasoning.control_marks if self.reasoning else ()))
        reader = OutputReader(
            tokenizer.vocabulary,
            partial(call_id, place, length=self.id_length),
            prompt_tail=prompt_tail,
            marks={each.token_id: each.text for each in marks},
            special_text=special_text,
        )
        after: After = self.format.parser(reader, self.tools, self.use) if self.format else PlainText(reader.text)
        if self.reasoning is not None:
            after = ReasoningParser(self.reasoning, self.stage, reader.reasoning, after)
        reader.read_by(after)
        return reader


PLAIN = OutputPlan()


def plan_output(
    constraint: Constraint | None,
    use: ToolUse | None,
    tools: ToolSet,
    format: ToolFormat | None,
    reasoning: ReasoningMarks | None,
    stage: Stage,
    *,
    id_length: int = 0,
) -> OutputPlan:
    """The plan of one generation. `reasoning` None: none is parsed. Raises `ToolError`, `ConstraintError`."""
    if use is None:
        plan = OutputPlan(grammar=constraint)
    elif format is None:
        raise ToolError("this model's format of tool calls is not known: set tool_format", "tool_use", "unsupported")
    else:
        plan = replace(_plan_calls(constraint, use, tools, format), id_length=id_length)
    if reasoning is None or stage == "after":
        return plan
    plan = replace(plan, reasoning=reasoning, stage=stage)
    return plan if plan.grammar is None else replace(plan, grammar=_after_reasoning(plan.grammar, reasoning, stage))


def _plan_calls(constraint: Constraint | None, use: ToolUse, tools: ToolSet, format: ToolFormat) -> OutputPlan:
    chosen = tools.pick(use.names)
    if use.mode == "required":
        if constraint is not None:
            raise ToolError("a constraint beside tool_use 'required' could never apply: leave one out", "constraint")
        if not chosen:
            raise ToolError("a tool call is required, but the branch has no tools", "tool_choice")
    elif not chosen:
        return OutputPlan(grammar=constraint)
    calls = format.grammar(chosen, format.max_calls if use.parallel else 1)
    if use.mode == "required":
        return OutputPlan(_composite(calls, f"root ::= {format.forced()}"), format, chosen, "required")
    if constraint is None:
        return OutputPlan(_composite(calls, format.free()), format, chosen, "free")
    root = f"root ::= {format.beside(constraint)} | {part_name(len(calls.parts))}"
    answer = Part("constraint", prepare(constraint))
    return OutputPlan(Composite(f"{calls.text}\n{root}\n", (*calls.parts, answer)), format, chosen, "beside")


def _composite(calls: CallGrammar, root: str) -> Composite:
    return Composite(f"{calls.text}\n{root}\n", calls.parts)


def _after_reasoning(grammar: Constraint | Composite, reasoning: ReasoningMarks, stage: Stage) -> Composite:
    """The same grammar, after reasoning."""
    rules = reasoning.rule(stage)
    if isinstance(grammar, Composite):
        head, _, root = grammar.text.rpartition("root ::= ")
        return Composite(f"{head}{rules}answer ::= {root.rstrip()}\nroot ::= reasoning answer\n", grammar.parts)
    return Composite(f"{rules}root ::= reasoning {part_name(0)}\n", (Part("constraint", prepare(grammar)),))
