"""Batch extraction: texts become typed objects. Whatever the model writes is valid JSON of the model's shape."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

import radixserve as rs

TEXTS = (
    "Hi, this is Maria. Please send two blue chairs to Oslo.",
    "Tom here, I need 5 red lamps delivered in Rome.",
    "We would like one green table. Our shop is in Lima. Regards, Chen",
    "Could I have 3 blue lamps? I live in Cairo. Thanks, Amira",
)
SYSTEM = rs.system("You read orders of a furniture shop and write each as one JSON object with the keys customer, city and item.")

Name = Annotated[str, Field(min_length=1, max_length=16)]


class Item(BaseModel):
    """What was ordered."""

    kind: Literal["chair", "lamp", "table"]
    colour: Literal["blue", "green", "red"]
    count: int = Field(ge=1, le=20)


class Order(BaseModel):
    """One order."""

    customer: Name
    city: Name
    item: Item


@rs.function
def extract(s: rs.State, text: str) -> Order:
    """The order in a text."""
    s += (SYSTEM, rs.user("Write this order as JSON: ", text))
    return s.gen(json=Order, temperature=0.0).value  # an Order, for type checkers too


def main(engine: rs.EngineLike) -> list[rs.Run[Order]]:
    """Run the batch and show the objects."""
    runs = extract.run_batch(TEXTS, engine=engine)
    for text, run in zip(TEXTS, runs, strict=True):
        print(f"text       {text}\norder      {run.value.model_dump_json()}")
    cached, prompt = (sum(getattr(run.usage, name) for run in runs) for name in ("cached_tokens", "prompt_tokens"))
    print(f"saved      {cached} of {prompt} prompt tokens came from the cache")
    return runs


if __name__ == "__main__":
    with rs.Engine("smollm2-135m") as local:
        main(local)
