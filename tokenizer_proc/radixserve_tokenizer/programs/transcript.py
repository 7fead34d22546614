"""The text side of a branch: raw text and messages become ids of its log, each segment once, when it is sealed.

Raw text waits so that how it was sliced can't change its tokens; messages wait for those that follow at once, as a template renders
the whole conversation each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from radixserve_tokenizer.programs import places
from radixserve_tokenizer.programs.errors import OpError
from radixserve_tokenizer.text.errors import TemplateError
from radixserve_tokenizer.text.messages import check_message
from radixserve_tokenizer.tools.marks import stand_in
from radixserve_tokenizer.tools.toolset import NO_TOOLS, ToolSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.programs.log import TokenLog
    from radixserve_tokenizer.programs.memory import Turn
    from radixserve_tokenizer.protocol import ToolCall
    from radixserve_tokenizer.text.conversation import Conversation, Edit
    from radixserve_tokenizer.text.template import ChatTemplate
    from radixserve_tokenizer.text.tokenizer import TextTokenizer
    from radixserve_tokenizer.tools.format import ToolFormat
    from radixserve_tokenizer.tools.reasoning import ReasoningMarks, Stage


MAX_WAITING_CHARS = 1 << 16
"""Of messages: more are rendered and encoded at once, which holds up everybody else."""


@dataclass(frozen=True, slots=True)
class TextModel:
    """How the served model writes text."""

    tokenizer: TextTokenizer
    template: ChatTemplate | None
    tool_format: ToolFormat | None = None
    """How the model writes tool calls; None: none can be asked for."""
    reasoning: ReasoningMarks | None = None
    """None: the model isn't known to reason between marks."""

    @property
    def grammar_marks(self) -> dict[int, bytes]:
        """Control tokens that grammars may name, with the bytes that stand for them there."""
        marks = [each for known in (self.tool_format, self.reasoning) if known is not None for each in known.control_marks]
        return {each.token_id: stand_in(each.token_id) for each in marks}

    @property
    def grammar_vocabulary(self) -> list[bytes]:
        """The vocabulary for which grammars are compiled."""
        marks = self.grammar_marks
        return [marks.get(token_id, token) for token_id, token in enumerate(self.tokenizer.vocabulary)]


class _Pending(NamedTuple):
    """Text that waits, piece by piece: marks between the pieces share those before them."""

    before: _Pending | None
    text: str
    num_chars: int


class _Waiting(NamedTuple):
    """A message that waits to be rendered, and those before it."""

    before: _Waiting | None
    role: str
    content: Sequence[str]
    fields: Mapping[str, Any]
    ids: Sequence[int]
    """In which the turn was drawn that this message tells; empty where that is not known."""
    num_chars: int


class TranscriptMark(NamedTuple):
    """What a transcript held at some time; the log's own mark belongs to it."""

    pending: _Pending | None
    waiting: _Waiting | None
    conversation: Conversation | None
    tools: ToolSet
    is_retooled: bool
    place: bytes
    turn: Turn | None


class Transcript:
    """Raw text and messages are collected until something seals them.

    Before the first message a branch is plain text; after it, raw text goes on inside an assistant turn. Tools are shown by
    the template, once there is a message; setting them changes the log when something has to be added to it.
    """

    __slots__ = (
        "_conversation",
        "_is_retooled",
        "_is_shared",
        "_log",
        "_model",
        "_pending",
        "_place",
        "_turn",
        "_waiting",
        "tools",
    )

    def __init__(self, model: TextModel, log: TokenLog) -> None:
        self._model = model
        self._log = log
        self._pending: _Pending | None = None
        self._waiting: _Waiting | None = None  # what was said before `_pending`, and is not in the conversation yet
        self._conversation: Conversation | None = None
        self._place = b""  # after the messages that were told, before the open turn
        self._turn: Turn | None = None  # what was generated as the whole of the open turn
        self.tools = NO_TOOLS
        self._is_retooled = False  # the conversation has other tools than its log shows
        self._is_shared = False  # a mark or a fork holds the conversation too: copy it before changing it

    def add_text(self, text: str) -> None:
        """Raw text after what is there."""
        if text:
            self._pending = _Pending(self._pending, text, self.num_waiting_chars + len(text))

    def add_ids(self, token_ids: Sequence[int]) -> None:
        """Raw ids after what is there; inside an assistant turn where there are messages."""
        if not token_ids:
            return
        self.open_turn()
        self._log.append(token_ids)
        self.generated(token_ids)

    def add_message(
        self,
        role: str,
        content: Sequence[str],
        fields: Mapping[str, Any],
        *,
        turn: Turn | None = None,
        ids: Sequence[int] = (),
    ) -> None:
        """A whole message, rendered when it is sealed; raises the template's errors, also of what was not sealed before.

        `turn` is what an assistant's message says, and `ids` are those in which it was drawn, where that is known.
        """
        if self._model.template is None:
            raise OpError("the model has no chat template: append text without a role", code="no_chat_template", param="role")
        check_message(role, fields, "messages")
        if self._pending is not None or self._is_retooled:
            self.seal()
        self._place, self._turn = self._place_after_turn, None
        if turn is not None:
            self._place = places.after_turn(self._place, turn)
        else:
            self._place = places.after_message(self._place, role, "".join(content), fields)
        num_chars = sum(map(len, content)) + (self._waiting.num_chars if self._waiting is not None else 0)
        self._waiting = _Waiting(self._waiting, role, content, fields, ids, num_chars)
        if num_chars > MAX_WAITING_CHARS:
            self.render()

    @property
    def next_turn_place(self) -> bytes | None:
        """The place where a turn would be opened next; None in plain text and inside a turn. Seals raw text."""
        if self._pending is not None:
            self.seal()
        return self._place if self.would_open_turn else None

    @property
    def turn_place(self) -> bytes | None:
        """The place of the open turn, in which nothing was said yet; else None."""
        conversation = self._conversation
        return self._place if conversation is not None and conversation.is_open and not conversation.turn_has_begun else None

    @property
    def _place_after_turn(self) -> bytes:
        """The place of a message that follows, after a turn that is open."""
        if self._waiting is not None:
            return self._place
        if self._conversation is None:
            return places.beginning(self._log.mark(), self.tools.definitions)
        if not self._conversation.is_open:
            return self._place
        if self._turn is not None:
            return places.after_turn(self._place, self._turn)
        return places.after_ids(self._place, self._log.mark())

    def set_tools(self, tools: ToolSet) -> None:
        """Show the model these tools from the next sealing on; raises the template's errors."""
        self.tools = tools
        if self._conversation is None and self._waiting is None:
            return
        self._place = places.after_tools(self._place, tools.definitions)
        if self._conversation is not None:
            self._own().set_tools(tools.definitions)
            self._is_retooled = True

    @property
    def reasoning_stage(self) -> Stage:
        """Where the open turn stands with the model's reasoning; a branch of plain text has none."""
        marks, conversation = self._model.reasoning, self._conversation
        if marks is None or conversation is None:
            return "after"
        return marks.stage(conversation.turn_text, conversation.turn_has_begun)

    def seal(self) -> None:
        """Encode what waits, after showing the tools that were set."""
        self.render()
        if self._is_retooled:
            self._apply(self._own().retool())
            self._is_retooled = False
        text, self._pending = _joined(self._pending), None
        if not text:
            return
        if self._conversation is not None:
            self._open()
            self._apply(self._own().extend_assistant_text(text))
            self._turn = None
            return
        tokenizer = self._model.tokenizer
        if len(self._log):
            self._log.append(tokenizer.encode(text, continues=True))
            return
        first = [tokenizer.bos_token_id] if tokenizer.add_bos and tokenizer.bos_token_id is not None else []
        self._log.append(first + tokenizer.encode(text))

    def render(self) -> None:
        """Bring the messages that wait into the conversation, all at once; raises the template's errors."""
        if self._waiting is None:
            return
        waiting: list[_Waiting] = []
        while self._waiting is not None:
            waiting.append(self._waiting)
            self._waiting = self._waiting.before
        waiting.reverse()
        assert self._model.template is not None
        before = self._conversation or self._model.template.conversation(len(self._log), tools=self.tools.definitions)
        try:
            after, edit = _rendered(before, waiting)
        except TemplateError:  # perhaps the template wants to see the messages themselves
            if not any(each.ids for each in waiting):
                raise
            after, edit = _rendered(before, [each._replace(ids=()) for each in waiting])
        self._conversation, self._is_shared, self._is_retooled = after, False, False
        self._apply(edit)

    def open_turn(self) -> None:
        """Seal, and where there are messages make sure that an assistant turn is open."""
        self.seal()
        self._open()

    @property
    def would_open_turn(self) -> bool:
        """Whether `open_turn` would add more than what waits to be sealed."""
        return self._waiting is not None or (self._conversation is not None and not self._conversation.is_open)

    def generated(self, token_ids: Sequence[int], turn: Turn | None = None) -> None:
        """Ids that the log already holds were generated (or given) inside the open turn; `turn` is what they say."""
        if self._conversation is None or not (token_ids or turn):
            return
        self._turn = turn if self.turn_place is not None else None
        if token_ids:
            self._own().extend_assistant_ids(list(token_ids))

    def called(self, text: str, calls: Sequence[ToolCall]) -> None:
        """What was just generated holds these calls, and this text beside them."""
        if self._conversation is not None and calls:
            told = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
            self._own().note_calls(text, told)

    @property
    def num_waiting_chars(self) -> int:
        """Length of the text that waits to be sealed."""
        return sum(each.num_chars for each in (self._pending, self._waiting) if each is not None)

    @property
    def copied_bytes(self) -> int:
        """What a mark of it keeps that later changes don't share."""
        return self._conversation.copied_bytes if self._conversation is not None and self._waiting is None else 0

    def mark(self) -> TranscriptMark:
        """What it holds now."""
        self._is_shared = True
        return TranscriptMark(
            self._pending, self._waiting, self._conversation, self.tools, self._is_retooled, self._place, self._turn
        )

    def restore(self, mark: TranscriptMark) -> None:
        """Go back to a mark; the log is cut by its owner."""
        self._pending, self._waiting, self._conversation, self.tools, self._is_retooled, self._place, self._turn = mark
        self._is_shared = True

    def fork(self, log: TokenLog) -> Transcript:
        """The same text over a fork of the log."""
        child = Transcript(self._model, log)
        child.restore(self.mark())
        return child

    def _open(self) -> None:
        if self.would_open_turn:
            self._apply(self._own().open_assistant())

    def _own(self) -> Conversation:
        assert self._conversation is not None
        if self._is_shared:
            self._conversation = self._conversation.copy()
            self._is_shared = False
        return self._conversation

    def _apply(self, edit: Edit) -> None:
        self._log.rewrite(edit.keep, edit.ids)


def _rendered(before: Conversation, waiting: Sequence[_Waiting]) -> tuple[Conversation, Edit]:
    conversation = before.copy()
    for each in waiting:
        if each.ids:
            conversation.add_turn(each.ids, "".join(each.content), each.fields.get("tool_calls"))
        else:
            conversation.add(each.role, each.content, each.fields)
    return conversation, conversation.render_messages()


def _joined(pending: _Pending | None) -> str:
    pieces: list[str] = []
    while pending is not None:
        pieces.append(pending.text)
        pending = pending.before
    return "".join(reversed(pieces))
