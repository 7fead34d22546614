"""What `make demo` runs: one system prompt, eight branches that vote, a constrained JSON answer, and the program's tree.

Runs against RADIXSERVE_URL if that is set, else starts an engine of its own.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Literal

from pydantic import BaseModel, Field
from rich.console import Console

import radixserve as rs

SYSTEM = rs.system(
    "You are a careful assistant for travellers. You answer questions about countries, cities, rivers and money. "
    "Think about what is asked, answer with facts that you are sure of, and keep to the point. "
    "When you are asked for one word, you answer with one word and nothing else."
)


CITIES = (" Paris", " Lyon", " Marseille", " Nice")


class Verdict(BaseModel):
    """What the program returns."""

    city: str = Field(max_length=24)
    country: str = Field(max_length=24)
    continent: Literal["Africa", "America", "Asia", "Europe", "Oceania"]


class Result(BaseModel):
    """The verdict with the votes behind it."""

    verdict: Verdict
    votes: dict[str, int]


@rs.function
def capital(s: rs.State, country: str, n: int = 8) -> Result:
    """Let n branches think and choose a city, take the majority, and have it written as JSON."""
    s += (SYSTEM, rs.user(f"Which city is the capital of {country}? Think about it in one sentence, then name the city."))
    votes: Counter[str] = Counter()
    with s.fork(n) as branches:
        choices: list[rs.Var[str]] = []
        for branch in branches:
            branch.gen(max_tokens=24, temperature=0.8, stop="\n")
            branch += f" So the capital of {country} is the city of"
            choices.append(branch.select(CITIES, method="sum"))
        for choice in rs.as_completed(choices):
            votes[choice.value.strip()] += 1
    winner = votes.most_common(1)[0][0]
    s += rs.assistant(f"The capital of {country} is {winner}.")
    s += rs.user("Write this as one JSON object with the keys city, country and continent.")
    return Result(verdict=s.gen(json=Verdict, max_tokens=96, temperature=0.0).value, votes=dict(votes.most_common()))


def main() -> None:
    """Run the program and show its answer and its tree."""
    out = Console(highlight=False)
    started = time.monotonic()
    if os.environ.get("RADIXSERVE_URL"):
        engine: rs.RemoteEngine | rs.Engine = rs.connect()
    else:
        out.print("[dim]starting an engine with smollm2-135m[/dim]")
        engine = rs.Engine("smollm2-135m", say=lambda text: out.print(f"[dim]{text}[/dim]"))
    with engine:
        out.print(f"[dim]ready after {time.monotonic() - started:.1f} s[/dim]")
        began = time.monotonic()
        run = capital.run("France", engine=engine, seed=7)
        took = time.monotonic() - began
        out.print("votes  ", ", ".join(f"{city} {count}" for city, count in run.value.votes.items()))
        out.print("answer ", run.value.verdict.model_dump_json())
        out.print(run.trace)
        usage = run.usage
        out.print(
            f"{usage.prompt_tokens} prompt tokens, of which {usage.cached_tokens} came from the cache; "
            f"{usage.output_tokens} tokens written in {took:.1f} s"
        )


if __name__ == "__main__":
    main()
