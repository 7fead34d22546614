"""What grammars cost: the mask of a decode step, the size of what is compiled, and cold compile times.

    python -m benchmarks.micro.masks [--batch 16] [--step-ms 20]

For each grammar `batch` requests draw at random from what their masks allow. "mask" is the processor time that filling and
accepting take for all of them in one step, as a part of a decode step of `--step-ms`; take that from benchmarks/micro/step.py.

Bars: at most 5 % of a step, 99 of 100 masks within a millisecond, cold compile p99 below 100 ms (of the tool schemas in benchmarks/tool_schemas.py).
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from radixserve.models import resolve
from radixserve_runtime.grammar.store import GrammarStore
from radixserve_tokenizer.grammar.compiler import Compiler
from radixserve_tokenizer.grammar.prepare import prepare
from radixserve_tokenizer.protocol import Constraint
from radixserve_tokenizer.text.load import load_tokenizer

MAX_PART = 0.05
MAX_MASK_MS = 1.0
_STEPS = 48

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
SCHEMAS: dict[str, Any] = {
    "object of 8 fields": {
        "type": "object",
        "properties": {f"field_{i}": (TEXT, WHOLE, {"type": "boolean"}, {"type": "number"})[i % 4] for i in range(8)},
        "required": [f"field_{i}" for i in range(8)],
    },
    "8 optional fields": {"type": "object", "properties": {f"field_{i}": TEXT for i in range(8)}},
    "number ranges": {
        "type": "array",
        "minItems": 6,
        "items": {"type": "number", "minimum": -90.5, "maximum": 180.25},
    },
    "patterns": {
        "type": "array",
        "minItems": 4,
        "items": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}(-[a-z]+)?$", "maxLength": 16},
    },
    "date-times": {"type": "array", "minItems": 3, "items": {"type": "string", "format": "date-time"}},
    "enum of 100": {"type": "array", "minItems": 6, "items": {"enum": [f"value number {i * 37}" for i in range(100)]}},
    "union by a kind": {
        "type": "array",
        "minItems": 3,
        "items": {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": kind}, "value": value}, "required": ["kind", "value"]}
                for kind, value in (("text", TEXT), ("count", WHOLE), ("flag", {"type": "boolean"}))
            ]
        },
    },
}


for _high in (24, 64, 200, 1000, 4096):
    SCHEMAS[f"text of up to {_high}"] = {"type": "string", "maxLength": _high}
SCHEMAS["4 bounded texts"] = {
    "type": "object",
    "properties": {f"field_{high}": {"type": "string", "maxLength": high} for high in (24, 64, 200, 256)},
    "required": [f"field_{high}" for high in (24, 64, 200, 256)],
}
SCHEMAS["8 bounded texts, 4096"] = {
    "type": "object",
    "properties": {f"field_{high}": {"type": "string", "minLength": 20, "maxLength": 4096 - high} for high in range(8)},
    "required": [f"field_{high}" for high in range(8)],
}
SCHEMAS["long patterns"] = {
    "type": "array",
    "minItems": 4,
    "items": {"type": "string", "pattern": "^[a-z]{1,200}-[0-9]{1,3}$"},
}
SCHEMAS["names of up to 256"] = {"type": "string", "pattern": "^[a-zA-Z0-9_.-]+$", "minLength": 3, "maxLength": 256}
SCHEMAS["pattern of 40 words"] = {"type": "string", "pattern": "^([a-z]+ ){1,40}$"}
EXPRESSIONS = {"expression, 500 characters": "[^\\n]{1,500}", "expression, 200 letters": "[a-z]{1,200}x[0-9]{3}"}


class Requests:
    """`batch` requests of one grammar; each begins again where it ends."""

    def __init__(self, store: GrammarStore, key: str, batch: int, eos: int) -> None:
        self._store, self._key, self._eos = store, key, eos
        self._matchers = [store.matcher(key) for _ in range(batch)]
        self._rows = [store.new_mask_row() for _ in range(batch)]
        self._random = random.Random(3)
        self.masks_ms: list[float] = []
        """Of each mask that was filled."""

    def step(self) -> float:
        """One token each; the seconds that masks and acceptance took."""
        spent_s = 0.0
        for matcher, row in zip(self._matchers, self._rows, strict=True):
            began_s = time.thread_time()
            matcher.fill(row)
            took_s = time.thread_time() - began_s
            spent_s += took_s
            self.masks_ms.append(1e3 * took_s)
        tokens = [self._draw(row) for row in self._rows]
        began_s = time.thread_time()
        for matcher, token in zip(self._matchers, tokens, strict=True):
            matcher.accept(token)
        spent_s += time.thread_time() - began_s
        for index, token in enumerate(tokens):
            if token == self._eos:
                self._matchers[index] = self._store.matcher(self._key)
        return spent_s

    def _draw(self, row: torch.Tensor) -> int:
        """Any token that the mask allows."""
        bits = (row[:, None] >> torch.arange(32, dtype=torch.int32)) & 1
        return int(self._random.choice(bits.flatten().nonzero().flatten().tolist()))


@click.command()
@click.option("--model", default="smollm2-135m", show_default=True)
@click.option("--batch", default=16, show_default=True)
@click.option("--step-ms", default=20.0, show_default=True, help="A decode step of that batch.")
def main(model: str, batch: int, step_ms: float) -> None:
    """One line a grammar."""
    tokenizer = load_tokenizer(Path(resolve(model)))
    eos = tokenizer.eos_token_ids
    compiler = Compiler(tokenizer.vocabulary, eos)
    store = GrammarStore(tokenizer.vocabulary, len(tokenizer.vocabulary), eos)
    store.warm_up()
    table = Table("grammar", "compile, ms", "payload, kB", "load, ms", "mask, ms: median", "99th", "of a step", "one: 99th")
    worst = slowest = 0.0
    constraints = {name: Constraint(kind="json_schema", source=json.dumps(schema)) for name, schema in SCHEMAS.items()}
    constraints |= {name: Constraint(kind="regex", source=expression) for name, expression in EXPRESSIONS.items()}
    for name, constraint in constraints.items():
        prepared = prepare(constraint)
        began_s = time.process_time()
        payload = compiler.compile(prepared.kind, prepared.source)
        compiled_s = time.process_time() - began_s
        began_s = time.process_time()
        store.put(name, payload)
        loaded_s = time.process_time() - began_s
        requests = Requests(store, name, batch, eos[0])
        spent_ms = sorted(1e3 * requests.step() for _ in range(_STEPS))
        part = spent_ms[_STEPS // 2] / step_ms
        worst = max(worst, part)
        high = spent_ms[int(0.99 * (_STEPS - 1))]
        columns = (1e3 * compiled_s, len(payload) / 1e3, 1e3 * loaded_s, spent_ms[_STEPS // 2], high)
        one = sorted(requests.masks_ms)[int(0.99 * (len(requests.masks_ms) - 1))]
        slowest = max(slowest, one)
        table.add_row(name, *(f"{value:.2f}" for value in columns), f"{part:.1%}", f"{one:.2f}")
    Console().print(table)
    raise SystemExit(worst > MAX_PART or slowest > MAX_MASK_MS)


if __name__ == "__main__":
    main()
