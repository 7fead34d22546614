"""The tokenizer process without its sockets: messages in, messages out, and a clock that is handed in."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from radixserve_runtime import protocol as runtime
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.link import RuntimeLink
from radixserve_tokenizer.peers import curve_key_of, describe
from radixserve_tokenizer.programs.attachment import Attachment
from radixserve_tokenizer.programs.bundle import build_services
from radixserve_tokenizer.programs.clients import Client
from radixserve_tokenizer.programs.enforcement import Enforcement
from radixserve_tokenizer.programs.errors import OpError, internal_error
from radixserve_tokenizer.programs.executor import Executor
from radixserve_tokenizer.programs.greeting import welcome
from radixserve_tokenizer.programs.intake import Intake
from radixserve_tokenizer.programs.outcomes import Outcomes
from radixserve_tokenizer.programs.queries import Queries
from radixserve_tokenizer.programs.tasks import Tasks
from radixserve_tokenizer.tenants.update import TenantsUpdate

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from radixserve_tokenizer.config import TokenizerConfig
    from radixserve_tokenizer.programs.grammars import Compiler
    from radixserve_tokenizer.programs.services import Services
    from radixserve_tokenizer.programs.transcript import TextModel

logger = logging.getLogger(__name__)

_SWEEP_S = 0.1
#: Ops and queries begin for so long before the loop sends, hears and goes round again.
_TURN_S = 0.05


class Core:
    """Clients, their programs and the link to the runtime.

    The server feeds it `handle`, `on_runtime` and `tick`, then sends what `flush` and `link.take_outgoing` give. An error
    while one message is handled fails that op alone; none of these methods raises for anything that came over the wire.
    """

    def __init__(self, config: TokenizerConfig, text: TextModel, compiler: Compiler, *, clock: Callable[[], float]) -> None:
        """Raises `TenantSettingsError` and `AccountFileError`."""
        self._config = config
        self._text = text
        self.epoch = secrets.token_hex(8)
        tokenizer = text.tokenizer
        self.link = RuntimeLink(
            runtime.Hello(
                version=runtime.PROTOCOL_VERSION,
                fingerprint=tokenizer.fingerprint,
                vocabulary=tokenizer.vocabulary,
                eos_token_ids=tokenizer.eos_token_ids,
                grammar_marks=text.grammar_marks,
            )
        )
        self._services = build_services(config, text, self.link, compiler, clock)
        self._outcomes = Outcomes(self._services)
        self._tasks = Tasks(self._services, self._outcomes)
        self._executor = Executor(self._services, self._outcomes, self._tasks)
        self._attachment = Attachment(self._services, self._outcomes)
        self._intake = Intake(self._services, self._outcomes, self._attachment)
        self._enforcement = Enforcement(self._services, self._outcomes)
        self._queries = Queries(self._services)
        self._tenants_update = TenantsUpdate(config.tenants_update, self._services)
        self._clients: dict[bytes, Client] = {}
        self._next_sweep = 0.0
        self._turn_ends: float | None = None
        self._queries_first = False

    @property
    def services(self) -> Services:
        """Shared state, for tests and the server's log lines."""
        return self._services

    # ---- clients --------------------------------------------------------------------------------------------------

    def handle(self, identity: bytes, message: wire.FromClient) -> None:
        """Take one message of a client in."""
        client = self._client(identity)
        try:
            self._handle(client, message)
        except Exception as error:
            # What is about one op has been caught where the op is known; this is the last net.
            logger.exception("a message of type %s failed", type(message).__name__)
            client.events.append(internal_error(message, error))
        self._run()

    def frame_ended(self, identity: bytes) -> None:
        """All messages of one frame have been handled. Programs that began in it are admitted or refused now, if not before."""
        client = self._clients.get(identity)
        if client is not None and client.undecided:
            self._intake.frame_ended(client)
            self._run()

    def malformed(self, identity: bytes, reason: str) -> None:
        """A frame could not be read."""
        client = self._client(identity)
        client.events.append(wire.Failed(program=-1, op=-1, code="malformed", message=reason, status=400))

    def drop_client(self, identity: bytes, why: str) -> None:
        """A client is gone: its programs are cancelled and forgotten, but for those that are detached."""
        client = self._clients.pop(identity, None)
        if client is None:
            return
        self._attachment.forget(client)
        programs = list(client.programs.values())
        ended = [program for program in programs if not self._attachment.park(program)]
        for program in ended:
            self._outcomes.end(program)
        level, parked = logging.WARNING if ended else logging.INFO, len(programs) - len(ended)
        logger.log(level, "client %s dropped (%s); %d programs ended, %d go on", describe(identity), why, len(ended), parked)
        self._run()

    @property
    def is_behind(self) -> bool:
        """Whether there is something to do at once that the last turn had no time for."""
        return bool(self._services.runnable) or self._queries.has_put_off or bool(self._services.retellings)

    def heard(self, identity: bytes) -> None:
        """Something of this client has come in, though it may have to wait."""
        client = self._clients.get(identity)
        if client is not None:
            client.last_heard = self._services.clock()

    def knows(self, identity: bytes) -> bool:
        """Whether this client is connected."""
        return identity in self._clients

    def is_allowed(self, curve_key: str) -> bool:
        """Whether a connection with this key is a tenant's."""
        return self._services.tenants.by_curve_key(curve_key) is not None

    def close(self) -> None:
        """Keep what has to outlive this process."""
        self._services.accounts.close()

    def goodbye(self, message: str) -> None:
        """Tell every client that this process ends."""
        for client in self._clients.values():
            client.events.append(wire.Goodbye(epoch=self.epoch, message=message))

    def flush(self, blocked: Container[bytes] = ()) -> list[tuple[bytes, list[wire.Event]]]:
        """Events to send now, one list a client. Clients in `blocked` get no new deltas: their text goes on coalescing."""
        self._turn_ends = None
        self._queries_first = not self._queries_first
        self._services.retellings.tell()
        out: list[tuple[bytes, list[wire.Event]]] = []
        for client in self._clients.values():
            if client.streaming and client.identity not in blocked:
                client.collect_deltas(self._services.clock(), self._services.config.stream_interval_ms / 1e3)
            if client.events:
                out.append((client.identity, client.events))
                client.events = []
        return out

    def deltas_due(self, blocked: Container[bytes] = ()) -> float | None:
        """When `flush` has something to tell though nothing comes in, by the clock; None: never."""
        dues = (client.deltas_due for client in self._clients.values() if client.identity not in blocked)
        return min((due for due in dues if due is not None), default=None)

    def _client(self, identity: bytes) -> Client:
        client = self._clients.get(identity)
        now = self._services.clock()
        if client is None:
            client = self._clients[identity] = Client(identity, now, curve_key_of(identity))
        client.last_heard = now
        return client

    def _handle(self, client: Client, message: wire.FromClient) -> None:
        match message:
            case wire.Hello():
                self._greet(client, message)
            case wire.Query():
                self._queries.take(client, message)
            case _ if not client.greeted:
                self._turn_away(client)
            case wire.Ping():
                client.events.append(wire.Pong(epoch=self.epoch))
            case _:
                self._intake.take(client, message)

    def _greet(self, client: Client, hello: wire.Hello) -> None:
        if hello.version != wire.PROTOCOL_VERSION:
            text = f"this server speaks protocol version {wire.PROTOCOL_VERSION}, not {hello.version}; update the older side"
            client.events.append(wire.Goodbye(epoch=self.epoch, message=text))
            return
        client.greeted = True
        if self.link.model is None:
            client.greeting_due = True  # the model is still loading: the welcome follows when it is there
        else:
            self._welcome(client, self.link.model)

    def _turn_away(self, client: Client) -> None:
        limit_s = self._config.client_timeout_s
        text = (
            f"this connection is not known: it was silent for {limit_s:g} s and its programs are gone (or it did not say Hello)"
        )
        goodbye = wire.Goodbye(epoch=self.epoch, message=text)
        if goodbye not in client.events:
            client.events.append(goodbye)

    def _welcome(self, client: Client, model: runtime.ModelInfo) -> None:
        client.greeting_due = False
        client.last_heard = self._services.clock()
        client.events.append(welcome(self._config, self._text, model, self.epoch))

    # ---- the runtime ----------------------------------------------------------------------------------------------

    def on_runtime(self, event: runtime.FromRuntime) -> None:
        """Take one message of the runtime in."""
        self.link.last_heard = self._services.clock()
        request_id = getattr(event, "request_id", -1)
        try:
            self._tasks.guarded(request_id, lambda: self._on_runtime(event))
        except Exception:
            logger.exception("a message of type %s from the runtime failed", type(event).__name__)
        self._run()

    def on_disconnected(self) -> None:
        """The connection to the runtime broke."""
        self.link.on_disconnected(self._services.clock())
        self._on_connection_lost()
        self._queries.on_connection_lost()
        self._run()

    def _on_connection_lost(self) -> None:
        self._tasks.on_connection_lost()
        self._services.leases.on_connection_lost()
        self._services.publics.on_connection_lost()

    def _on_runtime(self, event: runtime.FromRuntime) -> None:
        match event:
            case runtime.Tokens():
                self._tasks.on_tokens(event)
            case runtime.Finished():
                if not self._services.publics.on_finished(event.request_id):
                    self._tasks.on_finished(event)
            case runtime.Heartbeat():
                self.link.stats = event.stats
                self._queries.on_heartbeat()
            case runtime.Scored():
                self._tasks.on_scored(event)
            case runtime.PromptLogprobs():
                self._tasks.on_prompt_logprobs(event)
            case runtime.LeaseLost():
                self._services.leases.on_lost(event.branch_id)
            case runtime.NeedTokens() | runtime.NeedGrammar():
                self._on_need(event)
            case runtime.Failed():
                self._on_failed(event)
            case runtime.Ready():
                self._on_ready(event)
            case runtime.Rejected():
                self.link.on_rejected(event.message)

    def _on_need(self, event: runtime.NeedTokens | runtime.NeedGrammar) -> None:
        self._tasks.on_late(event.request_id, None)
        if isinstance(event, runtime.NeedTokens):
            resent = self.link.on_need_tokens(event.request_id)
        else:
            resent = self.link.on_need_grammar(event.request_id, event.key)
        if not resent:
            raise OpError("the runtime keeps asking for what it was given", code="internal", status=500)

    def _on_failed(self, event: runtime.Failed) -> None:
        if self._services.publics.on_failed(event):
            return
        if event.request_id >= 0:
            self._tasks.on_failed(event)
        elif event.code == "no_hello":
            logger.warning("the runtime has forgotten this connection")
            self.on_disconnected()
        else:
            logger.error("the runtime could not read a frame (%s): %s", event.code, event.message)

    def _on_ready(self, event: runtime.Ready) -> None:
        was_ready, epoch = self.link.is_ready, self.link.epoch
        if was_ready and event.epoch != epoch:
            self._on_connection_lost()
        lost = self.link.on_ready(event, self._services.clock())
        if not was_ready or event.epoch != epoch:
            self.link.publish(self._services.publics.publish(self._services.next_id))
        self._tasks.run_again(lost)
        self._executor.open_gate()
        for client in self._clients.values():
            if client.greeting_due:
                self._welcome(client, event.model)

    # ---- time -----------------------------------------------------------------------------------------------------

    def tick(self, *, compiler_has_answers: bool = True) -> None:
        """What happens as time passes; call it at least every 0.1 s, and when the compiler has something."""
        now = self._services.clock()
        try:
            self._services.grammars.poll(now, has_answers=compiler_has_answers)
        except Exception:
            logger.exception("the grammar compiler's answers could not be taken in")
        self.link.tick(now)
        self._services.accounts.tick(now)
        if self.link.is_ready:
            self.link.publish(self._services.publics.publish_again(self._services.next_id, now))
        away_since = self.link.down_since
        if away_since is not None and now - away_since > self._config.runtime_wait_s:
            error = OpError("the runtime is gone and did not come back in time", code="runtime_down", status=503, retryable=True)
            self._tasks.fail_all(error)
        self._enforcement.tick(now)
        self._tenants_update.tick(now)
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_S
            self._sweep(now)
        self._run()

    def _sweep(self, now: float) -> None:
        # Who waits for a welcome has not been told yet how often to speak.
        silent = [
            c.identity
            for c in self._clients.values()
            if not c.greeting_due and now - c.last_heard > self._config.client_timeout_s
        ]
        self._attachment.tick(now)
        for identity in silent:
            self.drop_client(identity, f"silent for {self._config.client_timeout_s:g} s")

    def _run(self) -> None:
        """Begin ops and answer queries for what is left of this turn, so that nobody's long texts hold up everybody's."""
        clock, queries = self._services.clock, self._queries
        if self._turn_ends is None:
            self._turn_ends = clock() + _TURN_S
        try:
            if not self._queries_first:
                self._executor.run(self._turn_ends)
            while queries.has_put_off and clock() <= self._turn_ends:
                queries.answer_next()
            self._executor.run(self._turn_ends)
            while self._intake.decide_what_is_known() or self._services.slots.start_waiting(clock()):
                self._executor.run(self._turn_ends)
        except Exception:  # ops are settled where they fail; what comes here is a bug in that, and the loop must go on
            logger.exception("an op could not be settled")
