"""Public prefixes: what the operator declared is computed by every runtime that starts, before health says "ok"."""

from __future__ import annotations

import logging
from dataclasses import dataclass
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


_AGAIN_S = 1.0


@dataclass(slots=True)
class _Prefix:
    name: str
    token_ids: tuple[int, ...]
    tries: int = 0


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
        self._prefixes: list[_Prefix] = []
        self._under_way: dict[int, _Prefix] = {}
        self._put_off: list[_Prefix] = []
        self._again_at = 0.0
        for number, prefix in enumerate(prefixes):
            name = f"public prefix {number} ({prefix.text[:40]!r})"
            try:
                token_ids = encode_prefix(text, prefix)
            except (OpError, TemplateError, InvalidTextError) as error:
                logger.error("%s can't be written for this model, so nobody shares it: %s", name, error)
                continue
            if token_ids:
                self._prefixes.append(_Prefix(name, token_ids))
            else:
                logger.error("%s has no tokens: leave it out", name)

    @property
    def is_settled(self) -> bool:
        """Whether the runtime has answered for each. What it puts off because it is busy holds nothing up."""
        return not any(prefix.tries == 1 for prefix in self._under_way.values())

    def publish(self, next_id: Callable[[], int]) -> list[Publish]:
        """What to send to a runtime that has just begun to serve."""
        self._under_way.clear()
        self._put_off.clear()
        for prefix in self._prefixes:
            prefix.tries = 0
        return [self._send(prefix, next_id()) for prefix in self._prefixes]

    def publish_again(self, next_id: Callable[[], int], now: float) -> list[Publish]:
        """What the runtime put off and may have room for by now."""
        if not self._put_off or now < self._again_at:
            return []
        self._again_at = now + _AGAIN_S
        due, self._put_off = self._put_off, []
        return [self._send(prefix, next_id()) for prefix in due]

    def on_finished(self, request_id: int) -> bool:
        """Take an answer in; False if it is not about a prefix."""
        prefix = self._under_way.pop(request_id, None)
        if prefix is not None:
            logger.info("%s is computed and shared", prefix.name)
        return prefix is not None

    def on_failed(self, event: Failed) -> bool:
        """Take a failure in; False if it is not about a prefix."""
        prefix = self._under_way.pop(event.request_id, None)
        if prefix is None:
            return False
        if event.retryable:
            if prefix.tries == 1:
                logger.warning("%s is not computed yet, and tried again: %s", prefix.name, event.message)
            self._put_off.append(prefix)
        else:
            logger.error("%s could not be computed (%s), so nobody shares it: %s", prefix.name, event.code, event.message)
        return True

    def on_connection_lost(self) -> None:
        """No answer will come any more; the next runtime is sent all of them."""
        self._under_way.clear()
        self._put_off.clear()

    def _send(self, prefix: _Prefix, request_id: int) -> Publish:
        prefix.tries += 1
        self._under_way[request_id] = prefix
        return Publish(request_id=request_id, token_ids=prefix.token_ids)
