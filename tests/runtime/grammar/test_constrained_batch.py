"""Grammar and sampler together, as the engine uses them: free and constrained requests in one batch."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

import pytest
import torch

from radixserve_runtime.grammar.store import GrammarStore
from radixserve_runtime.protocol import Sampling
from radixserve_runtime.sampling.ends import end_token_ids
from radixserve_runtime.sampling.sampler import SampledToken, Sampler
from radixserve_runtime.sampling.state import RowState
from radixserve_tokenizer.grammar.compiler import Compiler
from radixserve_tokenizer.grammar.prepare import prepare
from radixserve_tokenizer.protocol import Constraint

if TYPE_CHECKING:
    from radixserve_runtime.grammar.request import RequestGrammar

EOS = 256
VOCABULARY = [bytes([byte]) for byte in range(256)] + [b"", b"", b'": ', b", ", b'{"', b"ab", b"\n\n", b"  "]
VOCAB_SIZE = 300
SCHEMA = {"type": "object", "properties": {"name": {"enum": ["Ann", "Bob"]}, "n": {"type": "integer"}}, "required": ["name", "n"]}
REGEX = r"(yes|no|maybe)!{1,3}"


@pytest.fixture(scope="module")
def store() -> GrammarStore:
    store = GrammarStore(VOCABULARY, VOCAB_SIZE, [EOS])
    compiler = Compiler(VOCABULARY, [EOS])
    for key, kind, source in [
        ("schema", "json_schema", json.dumps(SCHEMA)),
        ("regex", "regex", REGEX),
        ("object", "json_object", ""),
    ]:
        prepared = prepare(Constraint(kind=kind, source=source))
        store.put(key, compiler.compile(prepared.kind, prepared.source))
    return store


class Request:
    """What the engine keeps of one request."""

    def __init__(self, name: str, grammar: RequestGrammar | None, **sampling) -> None:
        self.name = name
        self.grammar = grammar
        self.sampling = Sampling(max_tokens=60, seed=zlib.crc32(name.encode()), **sampling)
        self.row = RowState(self.sampling, eos_token_ids=[EOS])
        self.output: list[int] = []
        self.finished = False

    @property
    def text(self) -> str:
        return b"".join(VOCABULARY[token_id] for token_id in self.output if token_id < len(VOCABULARY)).decode()

    def logits(self) -> torch.Tensor:
        """A model: logits that depend on the request's own tokens alone."""
        seed = zlib.crc32(f"{self.name}{self.output}".encode())
        return torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 4


def step(store: GrammarStore, requests: list[Request]) -> None:
    masks: list[torch.Tensor | None] = []
    for request in requests:
        mask = None
        if request.grammar is not None:
            mask = store.new_mask_row()
            request.grammar.fill(mask)
        masks.append(mask)
    logits = torch.stack([request.logits() for request in requests])
    for request, outcome in zip(requests, Sampler(VOCAB_SIZE).sample(logits, [r.row for r in requests], masks), strict=True):
        assert isinstance(outcome, SampledToken)
        request.row.append(outcome.token_id)
        request.output.append(outcome.token_id)
        if request.grammar is not None:
            assert request.grammar.accept(outcome.token_id)
        ended = outcome.token_id in end_token_ids(request.sampling, [EOS])
        request.finished = ended or len(request.output) >= request.sampling.max_tokens


def run(store: GrammarStore, requests: list[Request], abort: str = "") -> dict[str, list[int]]:
    running = list(requests)
    for turn in range(60):
        if turn == 3:
            running = [request for request in running if request.name != abort]
        step(store, running)
        running = [request for request in running if not request.finished]
        if turn % 2:
            running.reverse()  # slots move
        if not running:
            break
    return {request.name: request.output for request in requests if request.name != abort}


def mixed(store: GrammarStore, **sampling) -> list[Request]:
    return [
        *(Request(f"free{i}", None, **sampling) for i in range(4)),
        *(Request(f"json{i}", store.matcher("schema"), **sampling) for i in range(4)),
        Request("regex", store.matcher("regex"), **sampling),
    ]


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.9}])
@pytest.mark.parametrize("abort", ["", "json1"])
def test_reported_bug_14_mixed_batches_equal_solo_runs(sampling, abort, store):
    together = run(store, mixed(store, **sampling), abort)
    for request in mixed(store, **sampling):
        if request.name != abort:
            assert run(store, [request])[request.name] == together[request.name], request.name
    for name, output in together.items():
        text = b"".join(VOCABULARY[token_id] for token_id in output if token_id < len(VOCABULARY))
        if name.startswith("json") and output[-1] == EOS:
            assert json.loads(text)["name"] in ("Ann", "Bob")
        if name == "regex":
            assert text.decode().rstrip("!") in ("yes", "no", "maybe")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_reported_bug_13_a_biased_model_can_not_loop_in_white_space(temperature, store):
    blanks = {index: 20.0 for index, data in enumerate(VOCABULARY) if data and not data.strip()}
    for number in range(5):
        request = Request(f"r{number}", store.matcher("object"), temperature=temperature, logit_bias=blanks)
        run(store, [request])
        data = b"".join(VOCABULARY[token_id] for token_id in request.output).decode(errors="replace")
        outside = "".join(data.split('"')[::2])
        assert "  " not in outside
        assert "\n" not in outside
        assert data.startswith("{")
        if request.output[-1] == EOS:
            assert isinstance(json.loads(data), dict)


def test_a_constrained_request_ends_although_min_tokens_is_not_reached(store):
    request = Request("regex", store.matcher("regex"), temperature=0.0, min_tokens=50)
    run(store, [request])
    assert request.output[-1] == EOS
    assert request.text.rstrip("!") in ("yes", "no", "maybe")
    assert request.text.endswith("!!!")
