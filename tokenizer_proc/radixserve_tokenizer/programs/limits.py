"""What can't fit is refused before it is encoded: encoding holds up everybody else, about a second for each two megabytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.errors import OpError, TextTooLongError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from radixserve_tokenizer.programs.branch import Branch

#: Most text that one op or query may have encoded where no context bounds it.
MAX_TEXT_CHARS = 1 << 20


def check_room(branch: Branch, op: wire.Append, max_context: int, longest_token: int) -> None:
    """Raise `TextTooLongError` for an append after which the branch could not be used, however few tokens its text has."""
    chars = branch.text.num_waiting_chars
    least = len(branch.log)
    for part in op.parts:
        match part:
            case wire.Text():
                chars += len(part.text)
            case wire.VarRef():
                chars += len(branch.program.variables[part.var].text or "")
            case wire.TokenIds():
                least += len(part.ids)
    of_text = -(-chars // longest_token)
    # Ids cost little: what is a bit too long is left to the generation, whose message counts it to the token.
    if of_text > max_context or least > 2 * max_context:
        raise TextTooLongError(max_context, least + of_text)
    check_size(op.fields, "fields")


def check_options(options: Iterable[str]) -> None:
    """Raise `OpError` for options that take too long to encode."""
    chars = sum(map(len, options))
    if chars > MAX_TEXT_CHARS:
        raise OpError(f"the options have {chars} characters together; at most {MAX_TEXT_CHARS} are taken", param="options")


def check_size(value: Mapping[str, Any], param: str) -> None:
    """Raise `OpError` for a value whose JSON is larger than what one op or query may have encoded."""
    if value and (size := len(msgspec.json.encode(value))) > MAX_TEXT_CHARS:
        raise OpError(f"{param} is {size} bytes of JSON; at most {MAX_TEXT_CHARS} are taken", param=param)
