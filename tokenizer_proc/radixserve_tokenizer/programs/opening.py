"""What an `Open` may say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer.programs.budget import check_budget
from radixserve_tokenizer.programs.detached import check_detached
from radixserve_tokenizer.programs.errors import OpError
from radixserve_tokenizer.programs.groups import MAX_GROUP_CHARS

if TYPE_CHECKING:
    from radixserve_tokenizer import protocol as wire


def check_open(message: wire.Open) -> None:
    """Raise `OpError` naming the field and what it may be."""
    if message.credits < 0:
        raise OpError(f"credits must be 0 or more, not {message.credits}", param="credits")
    check_detached(message.detached_ttl_s, message.resume_key)
    if message.budget is not None:
        check_budget(message.budget)
    if len(message.group) > MAX_GROUP_CHARS:
        raise OpError(f"group may have at most {MAX_GROUP_CHARS} characters, not {len(message.group)}", param="group")
