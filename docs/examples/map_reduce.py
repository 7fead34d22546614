"""Map-reduce over a long document: its parts are summarised side by side, and joined on the server. The program waits once."""

from __future__ import annotations

from pathlib import Path

import radixserve as rs

SYSTEM = rs.system("You summarise texts for busy readers. You write one short sentence and keep names and years.")
DOCUMENT = Path(__file__).parent / "data" / "harbour.txt"


@rs.function
def summarise(s: rs.State, chunks: list[str]) -> str:
    """One summary of all chunks."""
    s += SYSTEM
    with s.fork(len(chunks)) as branches:
        parts: list[rs.Var[str]] = []
        for branch, chunk in zip(branches, chunks, strict=True):
            branch += rs.user("Summarise in one sentence:\n", chunk)
            parts.append(branch.gen(max_tokens=28, stop="\n", temperature=0.0))
        notes = [note for part in parts for note in ("\n- ", part)]
        s += rs.user("Write one summary of these notes:", *notes)  # refers to values that do not exist yet; nothing waits
        return s.gen(max_tokens=56, temperature=0.0).value


def main(engine: rs.EngineLike) -> rs.Run[str]:
    """Run it and show the notes and the summary."""
    chunks = DOCUMENT.read_text(encoding="utf-8").split("\n\n")
    run = summarise.run(chunks, engine=engine)
    (fork,) = (step for step in run.trace.root.steps if step.kind == "fork")
    for number, branch in enumerate(fork.branches, 1):
        print(f"part {number}     {branch.steps[-1].text}")
    print(f"summary    {run.value}")
    print(f"saved      {run.usage.cached_tokens} of {run.usage.prompt_tokens} prompt tokens came from the cache")
    return run


if __name__ == "__main__":
    with rs.Engine("smollm2-135m") as local:
        main(local)
