"""Tool schemas of the kinds that agents have: how many can be enforced, how long that takes cold, and what a model makes of them.

    python benchmarks/tool_schemas.py                       # 300 schemas: accepted, and cold compile times
    python benchmarks/tool_schemas.py --generate 30         # and 30 required calls of the bundled model at temperature 1

Bars: >= 95 % accepted; cold compile p99 < 100 ms; >= 90 % of the calls end within 512 tokens, and all of those are valid.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click
import jsonschema
import msgspec

import radixserve as rs
from benchmarks.tool_samples import Sample, sample
from radixserve.models import resolve
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.grammar.compiler import CompileError, Compiler
from radixserve_tokenizer.grammar.prepare import prepare
from radixserve_tokenizer.text.load import load_tokenizer
from radixserve_tokenizer.tools.choose import choose_format
from radixserve_tokenizer.tools.errors import ToolError
from radixserve_tokenizer.tools.plan import plan_output
from radixserve_tokenizer.tools.toolset import read_tools

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from radixserve_lang.client import Client

MAX_TOKENS = 512
_REQUIRED = wire.ToolUse(mode="required", parallel=False)


def compile_all(model: Path, samples: Sequence[Sample]) -> tuple[dict[str, Any], list[Sample]]:
    """Each schema as the one tool of a required call, compiled from nothing; and those that were accepted."""
    tokenizer = load_tokenizer(model)
    compiler = Compiler(tokenizer.vocabulary, tokenizer.eos_token_ids)
    format = choose_format(tokenizer)
    accepted, times_ms, refused = [], [], Counter[str]()
    for each in samples:
        started_s = time.process_time()
        try:
            plan = plan_output(None, _REQUIRED, read_tools([each.tool]), format, None, "after")
            assert plan.grammar is not None
            prepared = prepare(plan.grammar)
            compiler.compile(prepared.kind, prepared.source)
        except (ToolError, CompileError) as error:
            refused[str(error).partition(": ")[2]] += 1
            continue
        times_ms.append(1000 * (time.process_time() - started_s))
        accepted.append(each)
    times_ms.sort()
    figures = {
        "schemas": len(samples),
        "accepted": len(accepted) / len(samples),
        "refused": dict(refused.most_common(8)),
        "compile_ms_p50": times_ms[len(times_ms) // 2],
        "compile_ms_p99": times_ms[int(0.99 * (len(times_ms) - 1))],
        "kinds": dict(Counter(kind for each in samples for kind in each.kinds)),
    }
    return figures, accepted


def bounded(each: Sample, max_text: int) -> Sample:
    """The same tool, with the keyword that bounds strings without a bound of their own."""
    if not max_text:
        return each
    schema = {"x-max-text": max_text, **each.schema}
    return each._replace(tool=msgspec.structs.replace(each.tool, parameters=json.dumps(schema)), schema=schema)


class _Call:
    """One required call, and its end."""

    def __init__(self, client: Client, each: Sample, seed: int) -> None:
        self.sample = each
        self.ended: wire.Done | wire.Failed | None = None
        self._over = threading.Event()
        self._channel = client.open(self._hear, seed=seed)
        program = self._channel.program
        self._channel.send(
            wire.Tools(program=program, op=0, branch=0, tools=(each.tool,)),
            wire.Append(program=program, op=1, branch=0, parts=(wire.Text(text=each.request),), role="user"),
            wire.Gen(
                program=program,
                op=2,
                branch=0,
                var=0,
                sampling=wire.Sampling(max_tokens=MAX_TOKENS, temperature=1.0),
                tool_use=_REQUIRED,
            ),
            flush=True,
        )

    def _hear(self, event: wire.Event) -> None:
        if isinstance(event, wire.Refused | wire.Goodbye):
            raise RuntimeError(event.message)
        if isinstance(event, wire.Done | wire.Failed):
            self.ended = event
            self._over.set()

    def wait(self) -> wire.Done | wire.Failed:
        """How it ended."""
        if not self._over.wait(600) or self.ended is None:
            raise TimeoutError("no answer in ten minutes")
        self._channel.close()
        return self.ended


def generate(client: Client, samples: Sequence[Sample], at_a_time: int) -> dict[str, Any]:
    """Required calls of a real model."""
    finished, valid, problems, lengths = 0, 0, [], []
    for first in range(0, len(samples), at_a_time):
        calls = [_Call(client, each, first + index) for index, each in enumerate(samples[first : first + at_a_time])]
        for call in calls:
            ended = call.wait()
            if isinstance(ended, wire.Failed):
                problems.append(f"{call.sample.tool.name}: {ended.message}")
            elif ended.finish_reason != "tool_calls":
                text = client.query("detokenize", {"ids": list(ended.token_ids)}).result(30)["text"]
                problems.append(f"{call.sample.tool.name}: {ended.finish_reason}: {text}")
            else:
                finished += 1
                lengths.append(len(ended.token_ids))
                problem = _problem(ended, call.sample)
                valid += not problem
                problems += [problem] if problem else []
    return {
        "calls": len(samples),
        "finished": finished / len(samples),
        "valid_of_finished": valid / max(1, finished),
        "tokens_p50": sorted(lengths)[len(lengths) // 2] if lengths else 0,
        "problems": problems,
    }


def _problem(done: wire.Done, each: Sample) -> str:
    if len(done.calls) != 1 or done.calls[0].name != each.tool.name or done.value:
        return f"{each.tool.name}: {done}"
    try:
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        jsonschema.validate(json.loads(done.calls[0].arguments), each.schema, format_checker=checker)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{each.tool.name}: {error} in {done.calls[0].arguments}"
    return ""


@click.command()
@click.option("--schemas", default=300, help="How many.")
@click.option("--generate", "num_calls", default=0, help="Calls to generate with the model.")
@click.option("--model", default="smollm2-135m", help="Model.")
@click.option("--at-a-time", default=16, help="Calls at a time.")
@click.option("--first", default=0, help="Leave out so many schemas before.")
@click.option("--max-text", default=0, help="Ask for strings of at most so many characters, where a schema says nothing.")
def main(schemas: int, num_calls: int, model: str, at_a_time: int, first: int, max_text: int) -> None:
    """Print the figures as JSON."""
    path = resolve(model)
    figures, accepted = compile_all(path, [bounded(sample(number), max_text) for number in range(first, first + schemas)])
    print(json.dumps(figures, indent=2, ensure_ascii=False))
    if num_calls:
        with rs.Engine(str(path)) as engine:
            print(json.dumps(generate(engine.client, accepted[:num_calls], at_a_time), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
