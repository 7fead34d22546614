"""The chat part of one branch's token log."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from radixserve_tokenizer.text.errors import TemplateError
from radixserve_tokenizer.text.inputs import INPUT_PATTERN, Content, Ids, Inputs
from radixserve_tokenizer.text.messages import check_message, parse_tool_calls
from radixserve_tokenizer.text.tooltext import ToolText

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.text.template import ChatTemplate


_CHAR_BYTES = 4  # inputs stand as characters beyond the basic plane
_POINTER_BYTES = 8


class Edit(NamedTuple):
    """A change of the token log: its first `keep` ids stay, and `ids` follow them."""

    keep: int
    ids: list[int]


class _Mark(NamedTuple):
    """A place where rendering and log are known to agree."""

    rendered: int
    """Characters of the rendering."""
    length: int
    """Ids of the log."""


class Conversation:
    """Messages of one branch, and the rendering that its token log stands for.

    The log is always what the template renders for the messages so far, except that generated ids stand where the
    template would put their text. Each change renders all messages (inputs are one character each, so this is quick) but
    encodes only what the rendering has more than before. Where the template rewrites its past (Qwen3 drops earlier
    thoughts) or joins text to text, the log is replaced from the last place that still agrees.

    A method that raises leaves the conversation as it was. Not shared between threads.
    """

    def __init__(
        self,
        template: ChatTemplate,
        start: int,
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> None:
        self._template = template
        self._start = start
        self._inputs = Inputs(template.tokenizer)
        self._tools = ToolText(template.tool_support, template.native)
        self._tools.set(tools or (), self._inputs)
        self._variables: dict[str, Any] = self._inputs.add_value(dict(variables or {}), "variables")
        self._now = datetime.now().astimezone()  # once, so that a date in the prompt does not change at midnight
        self._messages: list[dict[str, Any]] = []
        self._rendered = ""
        self._marks: list[_Mark] = []
        self._length = start
        self._turn = ""
        """The input character of the open assistant turn; empty when none is open."""
        self._ended_by = -1
        """The end-of-sequence token at the end of the open turn, which is no content; -1 when there is none."""
        self._last_result = ""
        """The input character of the last message, where that is a result to which others may be joined."""
        self._calls: dict[str, tuple[str, list[dict[str, Any]]]] = {}
        """By turn that ended with calls: the text beside them, and the calls."""

    def copy(self) -> Conversation:
        """An independent conversation in the same state, for a fork or to come back to."""
        other = Conversation.__new__(Conversation)
        other.__dict__.update(self.__dict__)
        other._inputs = self._inputs.copy()
        other._messages = self._messages.copy()
        other._tools = self._tools.copy()
        other._marks = self._marks.copy()
        other._calls = self._calls.copy()
        return other

    @property
    def copied_bytes(self) -> int:
        """About how much memory a copy takes that this changes after."""
        lists = len(self._messages) + len(self._marks)
        return _CHAR_BYTES * len(self._rendered) + _POINTER_BYTES * lists + self._inputs.copied_bytes

    @property
    def is_open(self) -> bool:
        """Whether an assistant turn is open."""
        return bool(self._turn)

    @property
    def length(self) -> int:
        """Length of the token log."""
        return self._length

    @property
    def text(self) -> str:
        """What the log stands for, as text."""
        return self._inputs.restore(self._rendered)

    def set_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """OpenAI's definitions of other tools. The log stays as it is until `retool` or the next change. Raises `TemplateError`,
        `InvalidTextError`."""
        self._tools = self._tools.copy()
        self._tools.set(tools, self._inputs)

    def retool(self) -> Edit:
        """Bring the log to the rendering with the tools that were set; an open turn keeps its ids. Raises `TemplateError`."""
        if not self._turn:
            return self.render_messages() if self._messages else Edit(self._length, [])
        prompt = self._render(add_generation_prompt=True)
        if prompt + self._turn == self._rendered:
            return Edit(self._length, [])
        ended_by, self._ended_by = self._ended_by, -1
        edit = self._move_to(prompt)
        inside = [*self._template.encode(self._turn, self._inputs, prompt), *([ended_by] if ended_by >= 0 else [])]
        self._rendered += self._turn
        self._ended_by = ended_by
        self._length += len(inside)
        return Edit(edit.keep, [*edit.ids, *inside])

    def message(
        self, role: str, content: Sequence[str | Ids], fields: Mapping[str, Any] | None = None, *, param: str = "messages"
    ) -> Edit:
        """Append a whole message; an open assistant turn is closed first. Raises `TemplateError`, `InvalidTextError`."""
        messages, turn, last_result = self._messages.copy(), self._turn, self._last_result
        self.add(role, content, fields, param=param)
        try:
            return self.render_messages()
        except TemplateError:
            self._messages, self._turn, self._last_result = messages, turn, last_result
            raise

    def add(
        self, role: str, content: Sequence[str | Ids], fields: Mapping[str, Any] | None = None, *, param: str = "messages"
    ) -> None:
        """Take a whole message without rendering; the next `render`, `message` or `open_assistant` answers for it too."""
        given = check_message(role, fields or {}, param)
        said = self._tools.said(role, content, given)
        whole, joins = said.content, bool(said.joins and self._last_result and not self._turn)
        if joins:
            whole = [*self._inputs.content(self._last_result), "\n", *whole]
        message: dict[str, Any] = {"role": said.role, "content": self._add_content(said.role, whole, f"{param}.content")}
        for name, value in said.fields.items():
            message[name] = self._inputs.add_value(value, f"{param}.{name}")
        self._close_turn()
        if joins:
            self._messages.pop()
        self._messages.append(message)
        self._last_result = message["content"] if said.joins else ""

    def add_turn(self, ids: Sequence[int], text: str, calls: Sequence[Mapping[str, Any]] | None) -> None:
        """Take a whole turn of the assistant that was generated as `ids`, without rendering; the next that renders answers for it.

        `calls` are what was called in it, in OpenAI's form, and `text` what was said beside them.
        """
        self._close_turn()
        content = tuple(ids[:-1] if ids and ids[-1] in self._template.tokenizer.eos_token_ids else ids)
        turn = self._inputs.add((content,))
        if calls:
            self._calls[turn] = (text, [dict(call) for call in calls])
        self._messages.append({"role": "assistant", "content": turn})
        self._last_result = ""

    def render(self) -> Edit:
        """Bring the log to the rendering of all messages. Raises `TemplateError`."""
        return self._move_to(self._render(add_generation_prompt=False))

    def render_messages(self) -> Edit:
        """The same, but nothing happens yet where a template refuses to render before the first user message comes."""
        try:
            return self.render()
        except TemplateError:
            if all(message["role"] in ("system", "developer") for message in self._messages):
                return Edit(self._length, [])
            raise

    def open_assistant(self) -> Edit:
        """Open an assistant turn with the template's generation prompt; nothing when one is open. Raises `TemplateError`."""
        if self._turn:
            return Edit(self._length, [])
        edit = self._move_to(self._render(add_generation_prompt=True))
        self._turn = self._inputs.add(())
        self._rendered += self._turn
        return edit

    @property
    def turn_text(self) -> str:
        """What the template itself has written so far, and what was said in the open turn; other messages are left out."""
        return INPUT_PATTERN.sub(lambda found: self._inputs.text(found[0]) if found[0] == self._turn else "", self._rendered)

    @property
    def turn_has_begun(self) -> bool:
        """Whether something was said in the open turn."""
        return bool(self._turn and self._inputs.content(self._turn))

    def note_calls(self, text: str, calls: Sequence[Mapping[str, Any]]) -> None:
        """What was generated in the open turn, taken apart: for templates that refuse a tool's result after mere text."""
        self._calls[self._turn] = (text, [dict(call) for call in calls])

    def extend_assistant_text(self, text: str) -> Edit:
        """Go on with the open turn by raw text. Raises `InvalidTextError`; `ValueError` when no turn is open."""
        if not self._turn:
            raise ValueError("no assistant turn is open")
        edit = Edit(self._length, self._template.encode_text(text, self._encoded_before(self._rendered)))
        self.extend_assistant_ids(edit.ids)
        return edit

    def extend_assistant_ids(self, ids: Sequence[int]) -> None:
        """Note ids that the log has got inside the open turn, a sampled end-of-sequence token included. `ValueError` when no turn is open."""
        if not self._turn:
            raise ValueError("no assistant turn is open")
        if not ids:
            return
        content = [*([self._ended_by] if self._ended_by >= 0 else []), *ids]
        self._ended_by = content.pop() if content[-1] in self._template.tokenizer.eos_token_ids else -1
        self._inputs.extend(self._turn, content)
        self._length += len(ids)

    def _add_content(self, role: str, content: Sequence[str | Ids], param: str) -> str:
        """The input character for a message's content, as the template would trim it."""
        joined: list[str | Ids] = []
        for piece in content:
            if isinstance(piece, str) and joined and isinstance(joined[-1], str):
                joined[-1] += piece
            else:
                joined.append(piece)
        trimmed: Content = self._template.trim(role, tuple(joined))
        if all(isinstance(piece, str) for piece in trimmed):
            return self._inputs.add_text("".join(map(str, trimmed)), param)
        return self._inputs.add(trimmed)

    def _close_turn(self) -> None:
        """Make the open turn a message. Its end is rendered with whatever comes next."""
        if self._turn:
            self._messages.append({"role": "assistant", "content": self._turn})
            self._turn = ""

    def _render(self, *, add_generation_prompt: bool) -> str:
        try:
            return self._render_messages(self._messages, add_generation_prompt)
        except TemplateError:
            # Generated turns stand as what was generated. Some templates want to be told that there were calls in them:
            # then those turns are written anew, as the template has them.
            told = [self._tell_calls(message) for message in self._messages]
            if told == self._messages:
                raise
            rendered = self._render_messages(told, add_generation_prompt)
            self._messages = told
            return rendered

    def _render_messages(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        return self._template.renderer.render(
            self._tools.messages(messages, self._inputs),
            now=self._now,
            add_generation_prompt=add_generation_prompt,
            tools=self._tools.variable,
            variables=self._variables,
        )

    def _tell_calls(self, message: dict[str, Any]) -> dict[str, Any]:
        text, calls = self._calls.get(message["content"], ("", []))
        if not calls or "tool_calls" in message:
            return message
        said = self._tools.said("assistant", [text], {"tool_calls": parse_tool_calls(calls, "tool_calls")})
        content = self._add_content(said.role, said.content, "content")
        return {"role": said.role, "content": content, **self._inputs.add_value(said.fields, "tool_calls")}

    def _move_to(self, rendered: str) -> Edit:
        """The edit that makes the log stand for `rendered`."""
        before, keep = self._agreeing_place(rendered)
        ids = self._template.encode(rendered[before:], self._inputs, self._encoded_before(rendered[:before]))
        if self._ended_by >= 0 and keep == self._length:
            # The model has ended its turn itself: the template's own end must not follow a second time.
            if ids[:1] == [self._ended_by]:
                del ids[0]
            else:
                keep -= 1
        self._ended_by = -1
        self._rendered = rendered
        self._length = keep + len(ids)
        self._marks.append(_Mark(len(rendered), self._length))
        return Edit(keep, ids)

    def _agreeing_place(self, rendered: str) -> _Mark:
        """The furthest place where the log already stands for the beginning of `rendered`, and encoding can go on from."""
        if rendered.startswith(self._rendered) and self._is_seam(rendered, len(self._rendered)):
            return _Mark(len(self._rendered), self._length)
        while self._marks:
            mark = self._marks.pop()
            same = rendered.startswith(self._rendered[: mark.rendered])
            if same and self._is_seam(rendered, mark.rendered):
                self._marks.append(mark)
                return mark
        return _Mark(0, self._start)

    def _is_seam(self, rendered: str, at: int) -> bool:
        before = self._encoded_before(rendered[:at])
        ends_in_ids = INPUT_PATTERN.match(before[-1:]) and not isinstance(self._inputs.content(before[-1])[-1], str)
        return bool(ends_in_ids) or self._template.is_seam(before, rendered[at:])

    def _encoded_before(self, rendered: str) -> str:
        """`rendered` without a turn at its end in which nothing was said."""
        while INPUT_PATTERN.match(rendered[-1:]) and not self._inputs.content(rendered[-1]):
            rendered = rendered[:-1]
        return rendered
