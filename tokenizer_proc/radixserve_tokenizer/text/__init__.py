"""Text to tokens and back. Nothing here does I/O except the two loaders.

    load_tokenizer(path: Path) -> TextTokenizer                 GGUF file or Hugging Face folder; raises TokenizerLoadError
    load_template(tokenizer) -> ChatTemplate | None             None: the model has no chat template; raises TemplateError

    TextTokenizer
        vocabulary: tuple[bytes, ...]                           bytes of each id; b"" for control tokens
        special: dict[str, int]                                 control tokens by text
        eos_token_ids: tuple[int, ...]
        bos_token_id: int | None, add_bos: bool                 whether a raw prompt starts with it
        vocab_size: int, fingerprint: str, chat_template: str | None
        encode(text, *, continues=False) -> list[int]           never a control token; raises InvalidTextError
        encode_bytes(raw) -> list[int]
        decode(ids, *, skip_special=True) -> str
        token_text(id) -> str                                   "\\ufffd" for incomplete characters; a control token's own text

    Detokenizer(vocabulary, *, prompt_tail=b"", special_text=None)
        feed(ids, hold_bytes=0) -> str                          complete characters only
        finish(cut_bytes=0) -> str                              what was withheld, less the last cut_bytes bytes
    prompt_tail(vocabulary, ids) -> bytes                       the unfinished character at the end of a prompt
    special_text(tokenizer) -> dict[int, bytes]                 for `Detokenizer` when special tokens are to be shown
    cut_at(tokenizer, ids, keep_bytes) -> Cut(ids, tail_ids)    where a stop string cuts inside a token

    ChatTemplate
        keeps_prefix: bool                                      appending a message leaves what was rendered before
        conversation(start=0, *, tools=None, variables=None) -> Conversation
        encode_messages(messages, *, tools=None, add_generation_prompt=True, variables=None) -> Rendered(ids, text)
                                                                OpenAI's message dicts, whole (the tokenize query)

    Conversation: the chat part of one branch's token log, which begins at position `start` of the log.
        Every change answers `Edit(keep, ids)`: the log becomes log[:keep] + ids. With a template that keeps its prefix,
        `keep` is len(log) (or len(log) - 1, where an end-of-sequence token was sampled that the template doesn't put).
        message(role, content: Sequence[str | Ids], fields=None) -> Edit      a whole message; closes an open turn first
        open_assistant() -> Edit                                              generation prompt; nothing when already open
        extend_assistant_text(text) -> Edit                                   prefill: raw text inside the open turn
        extend_assistant_ids(ids) -> None                                     generated ids that the log already holds,
                                                                              with the sampled end-of-sequence token or without
        is_open: bool
        copy() -> Conversation                                                cheap; for forks and rollback points

    Ids = tuple[int, ...]
    TemplateError(message, param="messages"), InvalidTextError(message, param="")    both answer status 400

Call `extend_assistant_ids` when a generation is done, with the ids as they stand in the log (after a cut: kept + tail).
"""

from radixserve_tokenizer.text.conversation import Conversation, Edit
from radixserve_tokenizer.text.cut import Cut, cut_at
from radixserve_tokenizer.text.detokenizer import Detokenizer, prompt_tail, special_text
from radixserve_tokenizer.text.errors import InvalidTextError, TemplateError, TokenizerLoadError
from radixserve_tokenizer.text.inputs import Ids
from radixserve_tokenizer.text.load import load_tokenizer
from radixserve_tokenizer.text.messages import content_of, fields_of
from radixserve_tokenizer.text.template import ChatTemplate, Rendered, load_template
from radixserve_tokenizer.text.tokenizer import TextTokenizer, check_text

__all__ = [
    "ChatTemplate",
    "Conversation",
    "Cut",
    "Detokenizer",
    "Edit",
    "Ids",
    "InvalidTextError",
    "Rendered",
    "TemplateError",
    "TextTokenizer",
    "TokenizerLoadError",
    "check_text",
    "content_of",
    "cut_at",
    "fields_of",
    "load_template",
    "load_tokenizer",
    "prompt_tail",
    "special_text",
]
