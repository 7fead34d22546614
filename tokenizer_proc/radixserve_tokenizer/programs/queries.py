"""Control messages: health, statistics, cache reset, text to tokens and back. No program, no branch."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.errors import OpError, invalid_key
from radixserve_tokenizer.programs.limits import MAX_TEXT_CHARS, check_size
from radixserve_tokenizer.programs.sampling import check_token_id
from radixserve_tokenizer.tenants.rows import tenant_rows
from radixserve_tokenizer.text.errors import InvalidTextError, TemplateError
from radixserve_tokenizer.tools.errors import ToolError
from radixserve_tokenizer.tools.toolset import read_tools

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.clients import Client
    from radixserve_tokenizer.programs.services import Services
    from radixserve_tokenizer.tenants.identity import Tenant

logger = logging.getLogger(__name__)

#: Of one connection over TCP that may wait.
_MAX_PUT_OFF = 64


class Queries:
    """Answers queries; a cache reset waits for the runtime."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._put_off: deque[tuple[Client, wire.Query]] = deque()
        self._resets: list[tuple[Client, int]] = []
        self._num_resets = 0
        """That the runtime had carried out when it was asked for one more."""

    def take(self, client: Client, query: wire.Query) -> None:
        """Answer now, or put off what takes a while."""
        if query.kind in ("tokenize", "detokenize"):
            self._put(client, query)
        else:
            self._answer(client, query)

    def _put(self, client: Client, query: wire.Query) -> None:
        if client.curve_key is not None and sum(one is client for one, _ in self._put_off) >= _MAX_PUT_OFF:
            text = f"{_MAX_PUT_OFF} of your queries wait: read their answers first"
            client.events.append(wire.Reply(id=query.id, error=text, status=429))
        else:
            self._put_off.append((client, query))

    @property
    def has_put_off(self) -> bool:
        """Whether queries wait for `answer_next`."""
        return bool(self._put_off)

    def answer_next(self) -> None:
        """Answer one query that was put off."""
        client, query = self._put_off.popleft()
        try:
            self._answer(client, query)
        except Exception as error:
            logger.exception("a query of kind %s failed", query.kind)
            text = f"internal error ({type(error).__name__}); the server's log has more"
            client.events.append(wire.Reply(id=query.id, error=text, status=500))

    def _answer(self, client: Client, query: wire.Query) -> None:
        reply = self._reply(client, query)
        if reply is not None:
            client.events.append(reply)

    def _reply(self, client: Client, query: wire.Query) -> wire.Reply | None:
        """The reply, or None if it will come later."""
        try:
            self._check_access(client, query)
            body = self._body(client, query)
        except (OpError, TemplateError, InvalidTextError) as error:
            status = error.status if isinstance(error, OpError) else 400
            return wire.Reply(id=query.id, error=error.message, status=status)
        return None if body is None else wire.Reply(id=query.id, body=body)

    def _check_access(self, client: Client, query: wire.Query) -> None:
        """A local socket is its owner's. Over TCP all but health is for tenants, and what concerns the whole engine for admins."""
        if client.curve_key is None or query.kind == "health":
            return
        tenant = self._services.tenants.caller(query.api_key, client.curve_key)
        if tenant is None:
            raise invalid_key()
        if query.kind in ("stats", "reset_cache") and not tenant.config.admin:
            raise OpError(f"{query.kind} is for admins alone", code="not_admin", status=403)

    def on_heartbeat(self) -> None:
        """Statistics came in; they are the answer to a reset if they count it. Others may have been under way when it was sent."""
        stats = self._services.link.stats
        if self._resets and stats.num_resets > self._num_resets:
            self._reset_done({"pages_leased": stats.pages_cached, "pages_locked": stats.pages_locked})

    def on_connection_lost(self) -> None:
        """A reset that was under way needs no answer of the runtime any more: its cache went with it."""
        self._reset_done({"pages_leased": 0, "pages_locked": 0})

    def _reset_done(self, kept: dict[str, int]) -> None:
        for client, query_id in self._resets:
            client.events.append(wire.Reply(id=query_id, body=kept))
        self._resets.clear()

    def health(self) -> dict[str, Any]:
        """Whether the engine makes progress."""
        services = self._services
        link, now = services.link, services.clock()
        age_s = now - link.last_heard
        return {
            "status": self._status(age_s),
            "message": link.rejected,
            "idle_s": link.stats.idle_s,
            "heartbeat_age_s": age_s if link.model is not None else None,
            "num_running": link.stats.num_running,
            "num_waiting": link.stats.num_waiting,
            "num_queued": services.admission.num_queued,
            "num_programs": services.admission.num_programs,
            "num_steps": link.stats.num_steps,
            "epoch": link.epoch,
        }

    def _status(self, age_s: float) -> str:
        link, limit_s = self._services.link, self._services.config.runtime_timeout_s
        if link.state == "loading":
            return "runtime_down" if link.rejected else "loading"
        if link.state == "down":
            return "runtime_down"
        if age_s > limit_s or link.stats.idle_s > limit_s:
            return "stuck"
        return "ok" if self._services.publics.is_settled else "loading"

    def _body(self, client: Client, query: wire.Query) -> dict[str, Any] | None:
        match query.kind:
            case "health":
                return self.health()
            case "stats":
                return {**msgspec.to_builtins(self._services.link.stats), **self._own_stats()}
            case "usage":
                return {"tenants": self._usage(client, query)}
            case "tenant":
                return {"tenant": self._caller(client, query).name}
            case "reset_cache":
                self._reset_cache(client, query.id)
                return None
            case "tokenize":
                return self._tokenize(query.body)
            case "detokenize":
                return self._detokenize(query.body)

    def _own_stats(self) -> dict[str, Any]:
        services = self._services
        return {
            "num_programs": services.admission.num_programs,
            "num_queued": services.admission.num_queued,
            "num_refused": services.admission.num_refused,
            "num_requests_in_flight": len(services.tasks),
            "num_held": services.slots.num_held,
            "num_queued_uncached_tokens": services.admission.num_queued_uncached_tokens,
            **tenant_rows(services.accounts, services.tenants, services.link.stats.tenants),
        }

    def _usage(self, client: Client, query: wire.Query) -> dict[str, dict[str, Any]]:
        tenant = self._caller(client, query)
        return self._services.accounts.describe(None if tenant.config.admin else tenant.name)

    def _caller(self, client: Client, query: wire.Query) -> Tenant:
        api_key = query.body.get("api_key", query.api_key)
        tenant = self._services.tenants.caller(api_key, client.curve_key) if isinstance(api_key, str) else None
        if tenant is None:
            raise invalid_key()
        return tenant

    def _reset_cache(self, client: Client, query_id: int) -> None:
        if not self._services.link.is_ready:
            raise OpError("the runtime is not there", code="runtime_down", status=503, retryable=True)
        if not self._resets:
            self._num_resets = self._services.link.stats.num_resets
            self._services.link.reset_cache()
        self._resets.append((client, query_id))

    def _tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        check_size(body, "the text")
        text_model = self._services.text
        text, messages = body.get("text"), body.get("messages")
        if isinstance(text, str) and messages is None:
            return {"ids": self._text_ids(text, body), "text": text}
        if text is not None or not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise OpError("tokenize needs either text (a string) or messages (a list of objects)", param="body")
        if text_model.template is None:
            raise OpError("the model has no chat template: tokenize text", code="no_chat_template", param="messages")
        prompt = body.get("add_generation_prompt", True)
        if not isinstance(prompt, bool):
            raise OpError("add_generation_prompt must be true or false", param="add_generation_prompt")
        tools = _tools_of(body)
        rendered = text_model.template.encode_messages(messages, tools=tools, add_generation_prompt=prompt)
        return {"ids": rendered.ids, "text": rendered.text}

    def _text_ids(self, text: str, body: dict[str, Any]) -> list[int]:
        tokenizer, special = self._services.text.tokenizer, body.get("add_special_tokens", False)
        if not isinstance(special, bool):
            raise OpError("add_special_tokens must be true or false", param="add_special_tokens")
        first = [tokenizer.bos_token_id] if special and tokenizer.add_bos and tokenizer.bos_token_id is not None else []
        return [*first, *tokenizer.encode(text)]

    def _detokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        token_ids = body.get("ids")
        tokenizer = self._services.text.tokenizer
        if not isinstance(token_ids, list):
            raise OpError("detokenize needs ids (a list of token ids)", param="ids")
        if len(token_ids) > MAX_TEXT_CHARS:
            raise OpError(f"ids has {len(token_ids)} entries; at most {MAX_TEXT_CHARS} are taken", param="ids")
        for token_id in token_ids:
            if not isinstance(token_id, int):
                raise OpError(f"ids: {token_id!r} is not a token id", param="ids")
            check_token_id(token_id, tokenizer.vocab_size, "ids")
        if body.get("separately") is True:
            return {"texts": [tokenizer.decode([token_id], skip_special=False) for token_id in token_ids]}
        return {"text": tokenizer.decode(token_ids, skip_special=False)}


def _tools_of(body: dict[str, Any]) -> tuple[dict[str, Any], ...] | None:
    """OpenAI's definitions of the tools, as a branch with the same `ToolSpec`s shows them."""
    if not body.get("tools"):
        return None
    try:
        return tuple(read_tools(msgspec.convert(body["tools"], list[wire.ToolSpec])).definitions)
    except msgspec.ValidationError as error:
        raise OpError(f"tools must be a list of tools: {error}", param="tools") from error
    except ToolError as error:
        raise OpError(error.message, param=error.param) from error
