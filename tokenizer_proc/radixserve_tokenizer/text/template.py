"""A model's chat template: rendering, and encoding what was rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from radixserve_tokenizer.text.conversation import Conversation
from radixserve_tokenizer.text.errors import TemplateError
from radixserve_tokenizer.text.inputs import INPUT_PATTERN, Content, Inputs
from radixserve_tokenizer.text.jinja import Renderer
from radixserve_tokenizer.text.messages import content_of, fields_of
from radixserve_tokenizer.text.tooltext import NativeTools, ToolSupport, probe_support
from radixserve_tokenizer.text.trimming import Trimming, probe_trimming

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.text.tokenizer import TextTokenizer


class Rendered(NamedTuple):
    """A whole prompt."""

    ids: list[int]
    text: str


def load_template(tokenizer: TextTokenizer, native: NativeTools | None = None) -> ChatTemplate | None:
    """The chat template that came with the tokenizer; None when there was none. Raises `TemplateError`."""
    return ChatTemplate(tokenizer.chat_template, tokenizer, native) if tokenizer.chat_template else None


class ChatTemplate:
    """A chat template with its tokenizer. Making one renders a few short conversations, to learn how it treats its inputs."""

    def __init__(self, source: str, tokenizer: TextTokenizer, native: NativeTools | None = None) -> None:
        """`native`: the model's own format of tool calls, for what the template doesn't know of tools."""
        self.tokenizer = tokenizer
        self.native = native
        self.renderer = Renderer(source, tokenizer.template_tokens)
        self._trimming: dict[str, Trimming] = probe_trimming(self.renderer)
        self.tool_support: ToolSupport = probe_support(self.renderer)
        self._control_texts = tuple(tokenizer.special)
        self.keeps_prefix: bool = _probe_prefix(self)
        """Whether a new message only adds to what was rendered before it. Otherwise `Edit.keep` may go back."""

    def conversation(
        self, start: int = 0, *, tools: Sequence[Mapping[str, Any]] | None = None, variables: Mapping[str, Any] | None = None
    ) -> Conversation:
        """An empty conversation that begins at position `start` of a token log.

        `tools` are OpenAI's tool definitions; `variables` are further ones of the template (enable_thinking).
        Raises `TemplateError`, `InvalidTextError`.
        """
        return Conversation(self, start, tools=tools, variables=variables)

    def encode_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """A whole prompt from OpenAI's messages. Raises `TemplateError`, `InvalidTextError`, each with the path of the culprit."""
        conversation = self.conversation(tools=tools, variables=variables)
        for index, message in enumerate(messages):
            where = f"messages[{index}]"
            content = content_of(message, where)
            conversation.add(str(message.get("role", "")), content, fields_of(message), param=where)
        edit = conversation.open_assistant() if add_generation_prompt else conversation.render()
        return Rendered(edit.ids, conversation.text)

    def trim(self, role: str, content: Content) -> Content:
        """Content as the template would trim it; ids stay as they are."""
        trimming = self._trimming.get(role)
        return trimming(content) if trimming else content

    def is_seam(self, before: str, after: str) -> bool:
        """Whether encoding `before` and `after` apart gives the same as together: a control token ends or begins there."""
        return not before or not after or before.endswith(self._control_texts) or after.startswith(self._control_texts)

    def encode(self, rendered: str, inputs: Inputs, before: str = "") -> list[int]:
        """Ids of a rendering that follows the rendering `before`. Neighbouring pieces of text are encoded as one."""
        pieces = _Pieces(self.tokenizer, at_start=not before, after_control=before.endswith(self._control_texts))
        for position, piece in enumerate(INPUT_PATTERN.split(rendered)):
            if position % 2:
                for part in inputs.content(piece):
                    if isinstance(part, str):
                        pieces.add_text(part)
                    else:
                        pieces.add_ids(part)
            else:
                for own in self.tokenizer.split_control(piece):
                    if isinstance(own, str):
                        pieces.add_text(own)
                    else:
                        pieces.add_control(own)
        return pieces.finish()

    def encode_text(self, text: str, before: str) -> list[int]:
        """Ids of raw text that follows the rendering `before`. Raises `InvalidTextError`."""
        pieces = _Pieces(self.tokenizer, at_start=not before, after_control=before.endswith(self._control_texts))
        pieces.add_text(text)
        return pieces.finish()


class _Pieces:
    """Collects ids; text waits until something other than text follows."""

    def __init__(self, tokenizer: TextTokenizer, *, at_start: bool, after_control: bool) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._text: list[str] = []
        self._fresh = at_start or (after_control and tokenizer.prefix_space == "always")
        """Whether a SentencePiece tokenizer puts its space before a text here."""

    def add_text(self, text: str) -> None:
        self._text.append(text)

    def add_ids(self, ids: Sequence[int]) -> None:
        self._flush()
        self._ids += ids
        self._fresh = self._fresh and not ids

    def add_control(self, id: int) -> None:
        self._flush()
        self._ids.append(id)
        self._fresh = self._tokenizer.prefix_space == "always"

    def finish(self) -> list[int]:
        self._flush()
        return self._ids

    def _flush(self) -> None:
        text = "".join(self._text)
        self._text.clear()
        if text:
            self._ids += self._tokenizer.encode(text, continues=not self._fresh)
            self._fresh = False


def _probe_prefix(template: ChatTemplate) -> bool:
    """Walk a few conversations and see whether the log was ever rewritten. What a template refuses says nothing."""
    # An answer that no template can take apart: one token of plain text.
    answer = next((id for id, token in enumerate(template.tokenizer.vocabulary) if token.isalpha()), None)
    if answer is None:
        return True
    calls = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    walks: list[list[tuple[str, dict[str, Any]]]] = [
        [("user", {}), ("open", {}), ("user", {}), ("open", {}), ("user", {})],
        [("system", {}), ("user", {}), ("open", {}), ("user", {}), ("open", {})],
        [("user", {}), ("assistant", {}), ("user", {}), ("open", {})],
        [("user", {}), ("assistant", {"tool_calls": calls}), ("tool", {"tool_call_id": "call_1"}), ("open", {}), ("user", {})],
    ]
    return all(_keeps(template, walk, answer) for walk in walks)


def _keeps(template: ChatTemplate, walk: Sequence[tuple[str, dict[str, Any]]], answer: int) -> bool:
    conversation = template.conversation()
    try:
        for role, fields in walk:
            length = conversation.length
            edit = conversation.open_assistant() if role == "open" else conversation.message(role, ["probe"], fields)
            if edit.keep < length:
                return False
            if role == "open":
                conversation.extend_assistant_ids([answer])
    except TemplateError:
        return True
    return True
