"""Is this version still as good as the stored one? `make bench-check`, or

    python -m benchmarks.check [--update]

Counted work (inprocess/counted.py) must be exactly what baseline.json says: messages, bytes, forward passes, tokens. CPU times are
medians of five passes, each divided by a calibration that ran just before and after it, and may be 30 % above the stored ratio. A
change that is meant is stored with --update, and reviewed like any other change. Exit status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.inprocess.counted import PARTS, count
from benchmarks.inprocess.stack import Stack
from benchmarks.micro import radix, scheduler, tokenizer, wire
from radixserve_tokenizer.text.load import load_tokenizer
from radixserve_tokenizer.text.template import load_template
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BASELINE = Path(__file__).with_name("baseline.json")
TOLERANCE = 1.3
PASSES = 5


def calibrate() -> float:
    """CPU seconds of a fixed piece of Python of the kind that the processes are made of: dictionaries, lists, calls, small ints."""
    began = time.thread_time()
    table: dict[int, list[int]] = {}
    total = 0
    for number in range(60_000):
        table.setdefault(number * 7919 % 997, []).append(number)
        total += len(table[number % 997]) if number % 997 in table else 1
    assert total > 0
    assert sum(len(row) for row in sorted(table.values(), key=len)) == 60_000
    return time.thread_time() - began


def _cpu_s(run: Callable[[], object]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began


def timed_items(model: Path) -> dict[str, Callable[[], float]]:
    """By name: a function that does the work and returns its CPU seconds, preparations not counted."""
    text = load_tokenizer(model)
    template = load_template(text)
    if template is None:
        raise RuntimeError("the tiny model has no chat template")
    texts = tokenizer.Bench(text, template, num_words=1000)

    def stack() -> float:
        ready = Stack(model)
        return _cpu_s(lambda: [part(ready) for part in PARTS.values()])

    def decisions() -> float:
        return sum(scheduler.Bench("dlpm", 500, 50).measure(20, 16))

    def tree() -> float:
        forest = radix.Forest(2_000, 4_000)
        new = [forest.new_prompt() for _ in range(1_000)]

        def use() -> None:
            for prompt in new:
                forest.insert(prompt)
                forest.cache.match(radix.NAMESPACES[prompt[0]], prompt[1])
            for _ in range(500):
                forest.cache.evict(2)

        return _cpu_s(use)

    return {
        "whole stack, tiny model": stack,
        "scheduler: decisions": decisions,
        "radix tree: insert, match, evict": tree,
        "tokenizer: encode": lambda: _cpu_s(texts.encode),
        "tokenizer: detokenize": lambda: _cpu_s(texts.detokenize),
        "tokenizer: a conversation": lambda: _cpu_s(texts.converse),
        "wire: frames both ways": lambda: _cpu_s(lambda: [wire.both_ways() for _ in range(20)]),
    }


def measure_times(items: Mapping[str, Callable[[], float]], passes: int = PASSES) -> dict[str, float]:
    """Medians of CPU time over calibration."""
    ratios: dict[str, list[float]] = {name: [] for name in items}
    calibrate()
    for run in items.values():
        run()  # what is imported or compiled on first use is no one's speed
    for _ in range(passes):
        before = calibrate()
        for name, run in items.items():
            took = run()
            after = calibrate()
            ratios[name].append(took / ((before + after) / 2))
            before = after
    return {name: statistics.median(values) for name, values in ratios.items()}


def compare_counts(stored: Mapping[str, Mapping[str, int]], found: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What differs, a line each."""
    problems: list[str] = []
    for part in sorted(stored.keys() | found.keys()):
        before, now = stored.get(part, {}), found.get(part, {})
        problems += [
            f"{part}: {name} is {now.get(name)}, stored is {before.get(name)}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]
    return problems


def compare_times(stored: Mapping[str, float], found: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """(what is slower than allowed or not comparable, what is so much faster that the baseline should follow)."""
    slower = [f"{name}: not in the baseline" for name in found.keys() - stored.keys()]
    slower += [f"{name}: in the baseline, but not measured" for name in stored.keys() - found.keys()]
    faster: list[str] = []
    for name in found.keys() & stored.keys():
        change = found[name] / stored[name]
        line = f"{name}: {found[name]:.2f} calibrations, stored are {stored[name]:.2f} ({change:.2f}x)"
        if change > TOLERANCE:
            slower.append(line)
        elif change < 1 / TOLERANCE:
            faster.append(line)
    return sorted(slower), sorted(faster)


def measure() -> dict[str, Any]:
    """Counts and times of this version, on a tiny random model."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_checkpoint(Path(folder) / "tiny")
        return {"counted": count(model), "times": measure_times(timed_items(model)), "python": platform.python_version()}


def check(stored: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    """Print what differs; 1 if anything counted does, or a time is above its tolerance."""
    counts = compare_counts(stored["counted"], found["counted"])
    slower, faster = compare_times(stored["times"], found["times"])
    for name in sorted(found["times"]):
        print(f"  {name:36}{found['times'][name]:8.2f} calibrations (stored {stored['times'].get(name, float('nan')):.2f})")
    for title, lines in (("counted work differs", counts), ("slower than 30 % above the baseline", slower)):
        if lines:
            print(f"{title}:")
            print("".join(f"  {line}\n" for line in lines), end="")
    for line in faster:
        print(f"faster; store it with --update: {line}")
    if not counts:
        print(f"counted work is as stored: {sum(map(len, found['counted'].values()))} counts")
    if slower and stored["python"].rpartition(".")[0] != found["python"].rpartition(".")[0]:
        print(f"the baseline is of Python {stored['python']}, this is {found['python']}: times may differ for that alone")
    return 1 if counts or slower else 0


def main() -> int:
    """Check, or store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="store what is measured now")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    options = parser.parse_args()
    found = measure()
    if options.update:
        options.baseline.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
        print(f"stored in {options.baseline}")
        return 0
    return check(json.loads(options.baseline.read_text()), found)


if __name__ == "__main__":
    sys.exit(main())
