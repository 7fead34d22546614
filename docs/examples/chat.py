"""A chat over a shared system prompt: each turn computes only what is new, the conversation so far is in the cache."""

from __future__ import annotations

import radixserve as rs

SYSTEM = rs.system("You are a guide for travellers in Europe. Answer in one short sentence.")
TURNS = ["What is the capital of France?", "Which river flows through it?", "What should I eat there?"]


@rs.function
def chat(s: rs.State, turns: list[str]) -> list[str]:
    """Answer the turns of one conversation, one after the other."""
    s += SYSTEM
    answers: list[str] = []
    for turn in turns:
        s += rs.user(turn)
        answers.append(s.gen(max_tokens=48, temperature=0.0).value)
    return answers


def main(engine: rs.EngineLike) -> rs.Run[list[str]]:
    """Run it and show the conversation."""
    run = chat.run(TURNS, engine=engine)
    for turn, answer in zip(TURNS, run.value, strict=True):
        print(f"user       {turn}\nassistant  {answer}")
    print(f"saved      {run.usage.cached_tokens} of {run.usage.prompt_tokens} prompt tokens came from the cache")
    return run


if __name__ == "__main__":
    with rs.Engine("smollm2-135m") as local:
        main(local)
