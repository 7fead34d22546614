"""ReAct: the model calls tools until it has the answer. Calls are valid by construction, and the KV stays warm meanwhile."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

import radixserve as rs

SYSTEM = rs.system("You answer questions about animals.")
QUESTION = "How many legs does a spider have?"
FACTS = {"ant": "An ant has 6 legs.", "horse": "A horse has 4 legs.", "spider": "A spider has 8 legs."}

Number = Annotated[int, Field(ge=0, le=99)]


@rs.tool
def look_up(animal: Literal["ant", "horse", "spider"]) -> list[str]:
    """Look an animal up in the encyclopedia.

    Args:
        animal: Its name.
    """
    return [FACTS[animal]]


@rs.tool
def multiply(a: Number, b: Number) -> int:
    """Multiply two numbers."""
    return a * b


@rs.tool
def finish(answer: Annotated[str, Field(max_length=60)]) -> str:
    """Tell the user the answer."""
    return answer


@rs.function
def react(s: rs.State, question: str, turns: int = 8) -> str:
    """Call, look at what came back, and call again."""
    s += (SYSTEM, rs.user(question))
    tools: list[rs.AnyTool[list[str] | int | str]] = [look_up, multiply, finish]
    for _ in range(turns):
        call = s.gen(tools=tools, temperature=0.0).value  # the arguments fit the annotations, whatever the model is
        result = s.call(call, lease_s=20.0)  # runs here; until the next gen the engine keeps what the branch holds
        if isinstance(result, str):
            return result
        # A small model would look the same thing up for ever. Offering fewer tools leaves the prompt as it is.
        tools = [tool for tool in tools if tool.name != call.name]
    raise TimeoutError(f"no answer after {turns} turns")


def main(engine: rs.EngineLike) -> rs.Run[str]:
    """Run it and show the calls and the answer."""
    run = react.run(QUESTION, engine=engine)
    print(f"question   {QUESTION}")
    for step in run.trace.root.steps:
        for name, arguments in step.calls:
            print(f"call       {name}({arguments})")
        if step.kind == "tool":
            print(f"result     {step.text}")
    print(f"answer     {run.value}")
    print(f"saved      {run.usage.cached_tokens} of {run.usage.prompt_tokens} prompt tokens came from the cache")
    return run


if __name__ == "__main__":
    with rs.Engine("smollm2-135m") as local:
        main(local)
