"""A small real tokenizer, a runtime that answers from a script, and a core between them without any socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.config import TokenizerConfig
from radixserve_tokenizer.programs.core import Core
from radixserve_tokenizer.programs.transcript import TextModel
from radixserve_tokenizer.text.template import ChatTemplate
from radixserve_tokenizer.text.tokenizer import Control, TextTokenizer
from radixserve_tokenizer.text.vocabulary import byte_level_alphabet

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.composite import Composite

M = TypeVar("M")

EOS = 1
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
_CONTROL = ["<|start|>", "<|end|>", "<|eot|>"]
_MERGES = [("A", "B"), ("AB", "C"), ("D", "E"), ("DE", "F"), ("C", "X"), ("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]


@cache
def tokenizer() -> TextTokenizer:
    """Byte-level BPE: ids 0-2 are control tokens (1 ends a turn, 2 a text), then 256 bytes, then a few merges."""
    alphabet = byte_level_alphabet()
    by_byte = {byte: char for char, byte in alphabet.items()}
    tokens = [by_byte[byte] for byte in range(256)] + [a + b for a, b in _MERGES]
    vocab = {token: 3 + index for index, token in enumerate(tokens)}
    engine = Tokenizer(models.BPE(vocab=vocab | {text: index for index, text in enumerate(_CONTROL)}, merges=_MERGES))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.decoder = decoders.ByteLevel()
    vocabulary = [b"", b"", b"", *(bytes(alphabet[char] for char in token) for token in tokens)]
    control = {text: Control(index) for index, text in enumerate(_CONTROL)}
    return TextTokenizer(engine, vocabulary, control, eos_token_ids=[EOS, 2], chat_template=TEMPLATE)


@cache
def text_model() -> TextModel:
    return TextModel(tokenizer(), ChatTemplate(TEMPLATE, tokenizer()))


def encode(text: str) -> tuple[int, ...]:
    return tuple(tokenizer().encode(text, continues=True))


def token(raw: str | bytes) -> int:
    """The one token with these bytes."""
    return tokenizer().vocabulary.index(raw.encode() if isinstance(raw, str) else raw)


@dataclass(frozen=True)
class Compiled:
    ticket: int
    key: str
    payload: bytes


@dataclass(frozen=True)
class CompileFailed:
    ticket: int
    message: str
    retryable: bool = False


class FakeCompiler:
    """Compiles at once, when asked for answers."""

    def __init__(self) -> None:
        self.submitted: list[wire.Constraint | Composite] = []
        self.tenants: list[str] = []
        self.answers: list[Compiled | CompileFailed] = []
        self.hold = False

    def submit(self, ticket: int, constraint: wire.Constraint | Composite, tenant: str) -> None:
        self.submitted.append(constraint)
        self.tenants.append(tenant)
        if "bad" in constraint.source:
            self.answers.append(CompileFailed(ticket, "the schema is bad at #/x"))
        elif "full" in constraint.source:
            self.answers.append(CompileFailed(ticket, "try again later", retryable=True))
        else:
            self.answers.append(Compiled(ticket, f"key-{tenant}-{constraint.source}", b"payload " + constraint.source.encode()))

    def cancel(self, ticket: int) -> None:
        self.answers = [answer for answer in self.answers if answer.ticket != ticket]

    def receive(self) -> list[Compiled | CompileFailed]:
        if self.hold:
            return []
        answers, self.answers = self.answers, []
        return answers

    def tick(self, now: float) -> None:
        pass


Script = Callable[[rt.Generate, list[int]], list[rt.FromRuntime]]


def says(*pieces: str | Iterable[int], reason: str = "stop", stop_token_id: int = EOS, **finished: Any) -> Script:
    """A script that draws these pieces, one `Tokens` each, and ends (with an end-of-sequence token, unless told otherwise)."""

    def script(request: rt.Generate, prompt: list[int]) -> list[rt.FromRuntime]:
        events: list[rt.FromRuntime] = []
        count = 0
        runs = [encode(piece) if isinstance(piece, str) else tuple(piece) for piece in pieces]
        if reason == "stop" and stop_token_id >= 0:
            runs.append((stop_token_id,))
        for ids in runs:
            count += len(ids)
            entries = tuple(rt.TokenLogprob(i, -0.5, 1, ((i, -0.5),) * request.sampling.logprobs) for i in ids)
            events.append(
                rt.Tokens(
                    request_id=request.request_id, token_ids=ids, logprobs=entries if request.sampling.logprobs >= 0 else ()
                )
            )
        usage = rt.Usage(prompt_tokens=len(prompt), cached_tokens=0, output_tokens=count)
        end = stop_token_id if reason == "stop" else -1
        events.append(
            rt.Finished(request_id=request.request_id, reason=reason, usage=usage, stop_token_id=end, **finished)  # type: ignore[arg-type]
        )
        return events

    return script


class FakeRuntime:
    """Speaks the runtime's protocol. Generations answer from `scripts` (then with "ok"), unless `hold` keeps them open."""

    def __init__(self, *, max_context: int = 4096, epoch: str = "r1") -> None:
        self.max_context = max_context
        self.epoch = epoch
        self.logs: dict[int, list[int]] = {}
        self.received: list[rt.ToRuntime] = []
        self.requests: dict[int, rt.Generate | rt.Score] = {}
        self.prompts: dict[int, list[int]] = {}
        self.scripts: deque[Script] = deque()
        self.by_prompt: Callable[[list[int]], Script] | None = None
        self.score: Callable[[list[int], tuple[int, ...]], tuple[float, ...]] = lambda prompt, ids: tuple(-1.0 for _ in ids)
        self.hold = False
        self.lose_bases = 0
        self.known_grammars: set[str] = set()
        self.leases: dict[int, rt.Lease] = {}
        self.publishes: list[rt.Publish] = []
        self.hold_publish = False
        self.num_resets = 0
        self.out: list[rt.FromRuntime] = []

    def ready(self) -> rt.Ready:
        model = rt.ModelInfo(
            architecture="llama",
            vocab_size=300,
            max_context=self.max_context,
            dtype="float32",
            num_layers=1,
            num_parameters=1,
            backend="reference",
        )
        return rt.Ready(
            version=1,
            epoch=self.epoch,
            fingerprint=tokenizer().fingerprint,
            model=model,
            stats=rt.Stats(pages_total=8, pages_free=8),
        )

    def take(self, messages: list[rt.ToRuntime]) -> None:
        for message in messages:
            self.received.append(message)
            match message:
                case rt.Hello():
                    self.out.append(self.ready())
                case rt.Generate() | rt.Score():
                    self._request(message)
                case rt.Fork():
                    log = self._bring(message.parent_id, message.base)
                    self.logs.update((child, log.copy()) for child in message.child_ids if log is not None)
                case rt.Drop():
                    self.logs = {branch: log for branch, log in self.logs.items() if branch not in message.branch_ids}
                case rt.Cancel():
                    self._cancel(message)
                case rt.Lease() | rt.Release() | rt.Publish():
                    self._keep(message)
                case rt.ResetCache():
                    self.num_resets += 1
                    self.out.append(rt.Heartbeat(stats=rt.Stats(num_resets=self.num_resets, pages_cached=3, pages_locked=2)))
                case rt.Ping():
                    pass

    def _cancel(self, message: rt.Cancel) -> None:
        for request_id in message.request_ids:
            if self.requests.pop(request_id, None):
                usage = rt.Usage(prompt_tokens=0, cached_tokens=0, output_tokens=0)
                self.out.append(rt.Finished(request_id=request_id, reason="abort", usage=usage))

    def _keep(self, message: rt.Lease | rt.Release | rt.Publish) -> None:
        match message:
            case rt.Lease():
                self._bring(message.branch_id, message.base)
                self.leases[message.branch_id] = message
            case rt.Release():
                self.leases.pop(message.branch_id, None)
            case rt.Publish():
                self.publishes.append(message)
                if not self.hold_publish:
                    self.finish_publish(message)

    def finish_publish(self, message: rt.Publish) -> None:
        usage = rt.Usage(prompt_tokens=len(message.token_ids), cached_tokens=0, output_tokens=0)
        self.out.append(rt.Finished(request_id=message.request_id, reason="length", usage=usage))

    def answer(self, request_id: int) -> None:
        """Let a held request run."""
        request = self.requests.pop(request_id)
        prompt = self.prompts[request_id]
        if isinstance(request, rt.Score):
            usage = rt.Usage(prompt_tokens=len(prompt), cached_tokens=0, output_tokens=0)
            scores = tuple(self.score(prompt, ids) for ids in request.options)
            self.out.append(rt.Scored(request_id=request_id, logprobs=scores, usage=usage))
            return
        script = self.by_prompt(prompt) if self.by_prompt else self.scripts.popleft() if self.scripts else says("ok")
        self.out.extend(script(request, prompt))

    def answer_all(self) -> None:
        for request_id in list(self.requests):
            self.answer(request_id)

    def _request(self, message: rt.Generate | rt.Score) -> None:
        log = self._bring(message.branch_id, message.base)
        if log is None:
            self.out.append(rt.NeedTokens(request_id=message.request_id, branch_id=message.branch_id))
            return
        if isinstance(message, rt.Generate) and message.grammar is not None:
            grammar = message.grammar
            if grammar.payload:
                self.known_grammars.add(grammar.key)
            elif grammar.key not in self.known_grammars:
                self.out.append(rt.NeedGrammar(request_id=message.request_id, key=grammar.key))
                return
        self.requests[message.request_id] = message
        self.prompts[message.request_id] = log.copy()
        if not self.hold:
            self.answer(message.request_id)

    def _bring(self, branch_id: int, base: rt.Base) -> list[int] | None:
        log = self.logs.get(branch_id) if base.length else []
        if self.lose_bases and base.length:
            self.lose_bases -= 1
            return None
        if log is None or len(log) < base.length or rt.log_hash(log[: base.length]) != base.hash:
            return None
        log = self.logs[branch_id] = [*log[: base.length], *base.new_ids]
        return log


def config(**changes: Any) -> TokenizerConfig:
    fields: dict[str, Any] = {
        "model": "m",
        "model_name": "tiny",
        "socket": "ipc://s",
        "runtime_socket": "ipc://r",
        "max_stop_strings": 4,
    }
    return TokenizerConfig(**(fields | changes))


@dataclass
class World:
    """A core, a scripted runtime and one client ("c") or more."""

    runtime: FakeRuntime = field(default_factory=FakeRuntime)
    settings: TokenizerConfig = field(default_factory=config)
    is_up: bool = True
    text: TextModel = field(default_factory=text_model)

    def __post_init__(self) -> None:
        self.now = 100.0
        self.compiler = FakeCompiler()
        self.core = Core(self.settings, self.text, self.compiler, clock=lambda: self.now)
        self.seen: list[wire.Event] = []
        self.blocked: set[bytes] = set()
        self.auto_flush = True
        if self.is_up:
            self.core.on_runtime(self.runtime.ready())
        self.send(wire.Hello(version=1))

    def send(self, *messages: wire.FromClient, client: bytes = b"c") -> World:
        for message in messages:
            self.core.handle(client, message)
        self.core.frame_ended(client)
        return self.settle()

    def settle(self) -> World:
        """Move messages between core and runtime until nothing moves."""
        while True:
            self.core.tick()
            self.runtime.take(self.core.link.take_outgoing())
            events, self.runtime.out = self.runtime.out, []
            for event in events:
                self.core.on_runtime(event)
            if self.auto_flush:
                self.flush()
            if not events and not self.compiler.answers:
                return self
            if self.compiler.hold and not events:
                return self

    def flush(self) -> list[wire.Event]:
        new = [event for _, events in self.core.flush(self.blocked) for event in events]
        self.seen.extend(new)
        return new

    def of(self, kind: type[M], **fields: Any) -> list[M]:
        """Events of a kind whose fields have these values."""
        return [
            event for event in self.seen if isinstance(event, kind) and all(getattr(event, k) == v for k, v in fields.items())
        ]

    def one(self, kind: type[M], **fields: Any) -> M:
        found = self.of(kind, **fields)
        assert len(found) == 1, f"{found}; all: {self.seen}"
        return found[0]

    def sent_generations(self) -> list[rt.Generate]:
        """Generations that the runtime took in, each once, in order."""
        return [message for message in self.sent(rt.Generate) if message.request_id in self.runtime.prompts]

    def sent(self, kind: type[M]) -> list[M]:
        """What the runtime was sent of a kind."""
        return [message for message in self.runtime.received if isinstance(message, kind)]

    def prompt_text(self, index: int = -1) -> str:
        """Prompt of the n-th generation or scoring, control tokens shown."""
        prompts = list(self.runtime.prompts.values())
        return tokenizer().decode(prompts[index], skip_special=False)


def text(value: str) -> wire.Text:
    return wire.Text(text=value)


def append(op: int, *parts: str | wire.Part, branch: int = 0, program: int = 1, role: str = "", **fields: Any) -> wire.Append:
    return wire.Append(
        program=program,
        op=op,
        branch=branch,
        parts=tuple(text(part) if isinstance(part, str) else part for part in parts),
        role=role,
        fields=fields,
    )


def gen(
    op: int, var: int | None = None, *, branch: int = 0, program: int = 1, stream: bool = False,
    constraint: wire.Constraint | None = None, **sampling: Any,
) -> wire.Gen:  # fmt: skip
    return wire.Gen(
        program=program,
        op=op,
        branch=branch,
        var=op if var is None else var,
        stream=stream,
        constraint=constraint,
        sampling=wire.Sampling(**sampling),
    )
