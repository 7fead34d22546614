"""Public prefixes: what the operator declared is computed by every runtime that starts, before health says "ok"."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from radixserve_runtime.protocol import Publish
from radixserve_tokenizer.programs.errors import OpError
from radixserve_tokenizer.programs.log import TokenLog
from radixserve_tokenizer.programs.transcript import Transcript
from radixserve_tokenizer.text.errors import InvalidTextError, TemplateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve_runtime.protocol import Failed
    from radixserve_tokenizer.config import PublicPrefix
    from radixserve_tokenizer.programs.transcript import TextModel

logger = logging.getLogger(__name__)


def encode_prefix(text: TextModel, prefix: PublicPrefix) -> tuple[int, ...]:
    """Its ids, written exactly as a program's first append would be; raises what that would raise."""
    log = TokenLog()
    transcript = Transcript(text, log)
    if prefix.role:
        transcript.add_message(prefix.role, [prefix.text], {})
    else:
        transcript.add_text(prefix.text)
    transcript.seal()
    return log.ids_from(0)


class PublicPrefixes:
    """Publishes the prefixes to each runtime, and knows when all are settled. One that fails is logged; programs then compute it for themselves."""

    def __init__(self, prefixes: Sequence[PublicPrefix], text: TextModel) -> None:
        self._ids: list[tuple[str, tuple[int, ...]]] = []
        self._under_way: dict[int, str] = {}
        for number, prefix in enumerate(prefixes):
            name = f"public prefix {number} ({prefix.text[:40]!r})"
            try:
                token_ids = encode_prefix(text, prefix)
            except (OpError, TemplateError, InvalidTextError) as error:
                logger.error("%s can't be written for this model, so nobody shares it: %s", name, error)
                continue
            if token_ids:
                self._ids.append((name, token_ids))
            else:
                logger.error("%s has no tokens: leave it out", name)

    @property
    def is_settled(self) -> bool:
        """Whether the runtime has answered for each."""
        return not self._under_way

    def publish(self, next_id: Callable[[], int]) -> list[Publish]:
        """What to send to a runtime that has just begun to serve."""
        messages = [Publish(request_id=next_id(), token_ids=token_ids) for _, token_ids in self._ids]
        self._under_way = {message.request_id: name for message, (name, _) in zip(messages, self._ids, strict=True)}
        return messages

    def on_finished(self, request_id: int) -> bool:
        """Take an answer in; False if it is not about a prefix."""
        name = self._under_way.pop(request_id, None)
        if name is not None:
            logger.info("%s is computed and shared", name)
        return name is not None

    def on_failed(self, event: Failed) -> bool:
        """Take a failure in; False if it is not about a prefix."""
        name = self._under_way.pop(event.request_id, None)
        if name is not None:
            logger.error("%s could not be computed (%s), so nobody shares it: %s", name, event.code, event.message)
        return name is not None

    def on_connection_lost(self) -> None:
        """No answer will come any more; the next runtime is sent all of them."""
        self._under_way.clear()
