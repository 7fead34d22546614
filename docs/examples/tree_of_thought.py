"""A tree of thought: every thought is continued in several ways, the model scores them, and only the best go on."""

from __future__ import annotations

import radixserve as rs

SYSTEM = rs.system("You are a patient planner. You think in short steps, one a line.")
QUESTION = "Three friends have one hour and a small kitchen. What should they cook?"
GOOD, BAD = "\nThis is a good idea.", "\nThis is a bad idea."


@rs.function
def tree_of_thought(s: rs.State, question: str, depth: int = 2, width: int = 3, keep: int = 2) -> str:
    """The answer at the end of the best line of thought."""
    s += (SYSTEM, rs.user(question))
    beam = [s]
    for step in range(1, depth + 1):
        kids = [kid for branch in beam for kid in branch.fork(width)]
        for kid in kids:
            kid += f"Step {step}:"
            kid.gen(max_tokens=32, stop="\n", temperature=0.8)
        marks = [judge(kid) for kid in kids]  # scored together, over the KV that they share
        ranked = sorted(zip(kids, marks, strict=True), key=lambda pair: -pair[1].value[GOOD])
        for loser, _ in ranked[keep:]:
            loser.cancel()  # its memory is free again
        beam = [kid for kid, _ in ranked[:keep]]
        for kid in beam:
            kid += "\n"
    return beam[0].gen(regex=r"Answer: [A-Z][^\n]+", max_tokens=48, temperature=0.0).value


def judge(thought: rs.State) -> rs.Var[dict[str, float]]:
    """How good the model finds it; the branch itself stays as it was."""
    return thought.score([GOOD, BAD], method="sum")


def main(engine: rs.EngineLike) -> rs.Run[str]:
    """Run it and show the answer."""
    run = tree_of_thought.run(QUESTION, engine=engine, seed=3)
    print(run.trace)
    print(f"question   {QUESTION}")
    print(f"answer     {run.value}")
    print(f"saved      {run.usage.cached_tokens} of {run.usage.prompt_tokens} prompt tokens came from the cache")
    return run


if __name__ == "__main__":
    with rs.Engine("smollm2-135m") as local:
        main(local)
