"""The text side of a branch: raw text and messages become ids of its log, each segment once, when it is sealed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from radixserve_tokenizer.programs.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.programs.log import TokenLog
    from radixserve_tokenizer.text.conversation import Conversation, Edit
    from radixserve_tokenizer.text.template import ChatTemplate
    from radixserve_tokenizer.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class TextModel:
    """How the served model writes text."""

    tokenizer: TextTokenizer
    template: ChatTemplate | None


class TranscriptMark(NamedTuple):
    """What a transcript held at some time; the log's own mark belongs to it."""

    pending: str
    conversation: Conversation | None


class Transcript:
    """Raw text coalesces in `pending` until something seals it, so that how it was sliced can't change the tokens.

    Before the first message a branch is plain text; after it, raw text goes on inside an assistant turn.
    """

    __slots__ = ("_conversation", "_is_shared", "_log", "_model", "_pending")

    def __init__(self, model: TextModel, log: TokenLog) -> None:
        self._model = model
        self._log = log
        self._pending = ""
        self._conversation: Conversation | None = None
        self._is_shared = False  # a mark or a fork holds the conversation too: copy it before changing it

    def add_text(self, text: str) -> None:
        """Raw text after what is there."""
        self._pending += text

    def add_ids(self, token_ids: Sequence[int]) -> None:
        """Raw ids after what is there; inside an assistant turn where there are messages."""
        if not token_ids:
            return
        self.open_turn()
        self._log.append(token_ids)
        self.generated(token_ids)

    def add_message(self, role: str, content: Sequence[str], fields: Mapping[str, Any]) -> None:
        """A whole message; raises the template's errors."""
        if self._model.template is None:
            raise OpError("the model has no chat template: append text without a role", code="no_chat_template", param="role")
        self.seal()
        if self._conversation is None:
            self._conversation = self._model.template.conversation(len(self._log))
            self._is_shared = False
        self._apply(self._own().message(role, list(content), dict(fields)))

    def seal(self) -> None:
        """Encode the text that waits."""
        text, self._pending = self._pending, ""
        if not text:
            return
        if self._conversation is not None:
            self._open()
            self._apply(self._own().extend_assistant_text(text))
            return
        tokenizer = self._model.tokenizer
        if len(self._log):
            self._log.append(tokenizer.encode(text, continues=True))
            return
        first = [tokenizer.bos_token_id] if tokenizer.add_bos and tokenizer.bos_token_id is not None else []
        self._log.append(first + tokenizer.encode(text))

    def open_turn(self) -> None:
        """Seal, and where there are messages make sure that an assistant turn is open."""
        self.seal()
        self._open()

    @property
    def would_open_turn(self) -> bool:
        """Whether `open_turn` would add more than what waits to be sealed."""
        return self._conversation is not None and not self._conversation.is_open

    def generated(self, token_ids: Sequence[int]) -> None:
        """Ids that the log already holds were generated (or given) inside the open turn."""
        if self._conversation is not None and token_ids:
            self._own().extend_assistant_ids(list(token_ids))

    @property
    def num_waiting_chars(self) -> int:
        """Length of the text that waits to be sealed."""
        return len(self._pending)

    def mark(self) -> TranscriptMark:
        """What it holds now."""
        self._is_shared = True
        return TranscriptMark(self._pending, self._conversation)

    def restore(self, mark: TranscriptMark) -> None:
        """Go back to a mark; the log is cut by its owner."""
        self._pending, self._conversation = mark
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
