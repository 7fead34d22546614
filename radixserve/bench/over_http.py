"""Any OpenAI-compatible server, over its chat completions."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import httpx
import orjson

from radixserve.bench.ask import BenchError, Outcome, Output
from radixserve.bench.stream import StreamReader, read_usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from radixserve.bench.ask import Message

_CHAT = "/v1/chat/completions"
_ONE_TOKEN = Output(max_tokens=1, exact=False)
_PROBE = Output(max_tokens=2)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server wants to be asked."""

    length_field: str = "max_tokens"
    exact: Mapping[str, Any] = field(default_factory=lambda: {"ignore_eos": True})
    """Fields that make an output as long as asked; values None stand for the number of tokens."""
    usage_in_stream: bool = True
    has_tokenize: bool = False

    def body(self, output: Output) -> dict[str, Any]:
        """The fields of a request, without model and messages."""
        body: dict[str, Any] = {self.length_field: output.max_tokens, "temperature": output.temperature, "stream": True}
        if self.usage_in_stream:
            body["stream_options"] = {"include_usage": True}
        if output.exact:
            body |= {name: output.max_tokens if value is None else value for name, value in self.exact.items()}
        if output.n > 1:
            body["n"] = output.n
        if output.seed is not None:
            body["seed"] = output.seed
        if output.schema is not None:
            shape = {"name": "answer", "strict": True, "schema": output.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        return body


#: From the most to the least that a server may know; the first that it takes is kept.
_DIALECTS = (
    Dialect(),
    Dialect(exact={"min_tokens": None}),
    Dialect(exact={}),
    Dialect(exact={}, usage_in_stream=False),
    Dialect(exact={}, length_field="max_completion_tokens"),
    Dialect(exact={}, length_field="max_completion_tokens", usage_in_stream=False),
)


class HttpTarget:
    """A server behind a URL. Make it with `open`."""

    def __init__(self, http: httpx.AsyncClient, address: str, keys: Sequence[str], extra_body: Mapping[str, Any]) -> None:
        self.address = address
        self.model = ""
        self.max_context = 0
        self.num_keys = max(1, len(keys))
        self.notes: list[str] = []
        self.dialect = Dialect()
        self.http = http
        self.extra_body = extra_body
        self._headers = [{"authorization": f"Bearer {key}"} for key in keys] or [{}]

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        model: str = "",
        keys: Sequence[str] = (),
        timeout_s: float = 900.0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> Self:
        """Find out the model's name and how the server wants to be asked. `url` is with or without "/v1". Raises `BenchError`."""
        base = url.rstrip("/").removesuffix("/v1")
        # Without a bound on connections none of the requests of a workload waits in this process.
        http = httpx.AsyncClient(
            base_url=base,
            timeout=httpx.Timeout(timeout_s, connect=10.0, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )
        target = cls(http, base, keys, extra_body or {})
        try:
            await target._meet(model)
        except BaseException:
            await http.aclose()
            raise
        return target

    def converse(self, key: int = 0) -> HttpConversation:
        """A new conversation with one of the keys."""
        return HttpConversation(self, key, [])

    async def close(self) -> None:
        """End all connections."""
        await self.http.aclose()

    async def count(self, messages: Sequence[Message]) -> int:
        """Tokens of a prompt: by /tokenize, or by what a request of one token says of its prompt."""
        if self.dialect.has_tokenize:
            found = await self._tokenize(messages)
            if found is not None:
                return found
        answer = await self.request(messages, {self.dialect.length_field: 1, "temperature": 0.0})
        if answer.status_code != 200:
            raise BenchError(f"{self.address} answered {answer.status_code} to a request of one token: {reason(answer.content)}")
        outcome = Outcome(_ONE_TOKEN, 0.0)
        read_usage(_object(answer.content).get("usage"), outcome)
        if outcome.prompt_tokens is None:
            raise BenchError(
                f"{self.address} neither has /tokenize nor says usage.prompt_tokens: prompts of exact lengths can't be made"
            )
        return outcome.prompt_tokens

    def headers(self, key: int) -> dict[str, str]:
        """Of requests with one of the keys."""
        return self._headers[key % len(self._headers)]

    async def request(self, messages: Sequence[Message], fields: Mapping[str, Any], key: int = 0) -> httpx.Response:
        """One request, answered whole. Raises `BenchError` when the server can't be reached."""
        try:
            return await self.http.post(
                _CHAT,
                content=encode(self.model, messages, fields, self.extra_body),
                headers={"content-type": "application/json", **self.headers(key)},
            )
        except httpx.HTTPError as error:
            raise BenchError(f"no answer from {self.address}: {error or type(error).__name__}") from error

    async def _meet(self, model: str) -> None:
        listed = await self._models()
        self.model = model or next(iter(listed), "")
        if not self.model:
            raise BenchError(f"{self.address} lists no model; name one with --model")
        self.max_context = listed.get(self.model, 0)
        self.dialect = await self._find_dialect()
        if await self._tokenize([("user", "Hello")]) is not None:
            self.dialect = replace(self.dialect, has_tokenize=True)
        if not self.dialect.exact:
            self.notes.append("the server takes neither ignore_eos nor min_tokens: outputs end where the model ends them")
        if not self.dialect.usage_in_stream:
            self.notes.append("the server does not count tokens in a stream: an output token is a piece that arrived")

    async def _models(self) -> dict[str, int]:
        """Names, and the longest context where it is told."""
        try:
            answer = await self.http.get("/v1/models", headers=self.headers(0))
        except httpx.HTTPError as error:
            raise BenchError(f"no server answers at {self.address} ({error or type(error).__name__})") from error
        if answer.status_code != 200:
            raise BenchError(f"{self.address}/v1/models answered {answer.status_code}: {reason(answer.content)}")
        rows: list[dict[str, Any]] = _object(answer.content).get("data") or []
        return {str(row.get("id", "")): int(row.get("max_model_len") or 0) for row in rows}

    async def _find_dialect(self) -> Dialect:
        """The first that is not answered with 400 or 422."""
        refusal = ""
        for dialect in _DIALECTS:
            fields = dialect.body(_PROBE)
            answer = await self.request([("user", "Hello")], fields)
            if answer.status_code == 200:
                return dialect
            refusal = f"{answer.status_code}: {reason(answer.content)}"
            if answer.status_code not in (400, 422):
                break
        raise BenchError(f"{self.address} answered a first request with {refusal}")

    async def _tokenize(self, messages: Sequence[Message]) -> int | None:
        """By vLLM's form of /tokenize; None where the server has another or none."""
        body = {"model": self.model, "messages": _wire(messages), "add_generation_prompt": True}
        try:
            answer = await self.http.post(
                "/tokenize", content=orjson.dumps(body), headers={"content-type": "application/json", **self.headers(0)}
            )
        except httpx.HTTPError:
            return None
        count = _object(answer.content).get("count") if answer.status_code == 200 else None
        return count if isinstance(count, int) else None


class HttpConversation:
    """A list of messages that is sent whole each time, as the API wants it."""

    def __init__(self, target: HttpTarget, key: int, messages: list[Message]) -> None:
        self._target = target
        self._key = key
        self._messages = messages

    async def say(self, messages: Sequence[Message], output: Output, label: str = "") -> Outcome:
        """Stream one answer."""
        target = self._target
        self._messages += messages
        content = encode(target.model, self._messages, target.dialect.body(output), target.extra_body)
        headers = {"content-type": "application/json", **target.headers(self._key)}
        outcome = Outcome(output, time.perf_counter(), key=self._key, label=label)
        try:
            async with target.http.stream("POST", _CHAT, content=content, headers=headers) as answer:
                if answer.status_code == 200:
                    await StreamReader(outcome).read(answer.aiter_bytes())
                else:
                    outcome.error = f"{answer.status_code}: {reason(await answer.aread())}"
        except httpx.HTTPError as error:
            outcome.error = f"{type(error).__name__}: {error}"
        outcome.ended_s = time.perf_counter()
        if output.n == 1 and outcome.texts:
            # A model without sense may write NUL, which some servers refuse in a message.
            self._messages.append(("assistant", outcome.texts[0].replace("\0", "")))
        return outcome

    async def fork(self, count: int) -> list[HttpConversation]:
        """Copies."""
        return [HttpConversation(self._target, self._key, list(self._messages)) for _ in range(count)]

    async def close(self) -> None:
        """Nothing is kept on the server."""


def encode(model: str, messages: Sequence[Message], fields: Mapping[str, Any], extra: Mapping[str, Any]) -> bytes:
    """A request's body."""
    return orjson.dumps({"model": model, "messages": _wire(messages), **fields, **extra})


def reason(body: bytes) -> str:
    """What an error's body says, at most 400 characters."""
    error = _object(body).get("error")
    if isinstance(error, dict) and "message" in error:
        return str(error["message"])[:400]  # pyright: ignore[reportUnknownArgumentType]
    return body.decode("utf-8", "replace")[:400]


def _wire(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in messages]


def _object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is; empty when it is none."""
    try:
        found: Any = orjson.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]
