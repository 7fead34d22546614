"""Few-shot classification of a CSV: one program for each row, the examples before the row are computed once for all."""

from __future__ import annotations

import csv
from pathlib import Path

import radixserve as rs

TABLE = Path(__file__).parent / "data" / "reviews.csv"
LABELS = ("positive", "negative")
EXAMPLES = (
    ("The cake was fantastic and so was the view.", "positive"),
    ("They forgot my order twice.", "negative"),
    ("Bad smell, bad service, bad coffee.", "negative"),
    ("Cosy, clean and cheap. We come back every week.", "positive"),
)
SHOTS = "".join(f"{review} This review is {label}.\n\n" for review, label in EXAMPLES)


@rs.function
def classify(s: rs.State, review: str) -> str:
    """One of the labels."""
    s += SHOTS  # raw text before any message: no chat template
    s += f"{review} This review is"
    return s.select([f" {label}" for label in LABELS]).value.strip()  # one forward pass for all labels


def main(engine: rs.EngineLike) -> list[rs.Run[str]]:
    """Classify the table and compare with the labels that people gave."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    runs = classify.run_batch([row["review"] for row in rows], engine=engine, concurrency=8)
    for row, run in zip(rows, runs, strict=True):
        print(f"{run.value:9}  {row['review']}")
    right = sum(run.value == row["label"] for row, run in zip(rows, runs, strict=True))
    cached, prompt = (sum(getattr(run.usage, name) for run in runs) for name in ("cached_tokens", "prompt_tokens"))
    print(f"right      {right} of {len(rows)}")
    print(f"saved      {cached} of {prompt} prompt tokens came from the cache")
    return runs


if __name__ == "__main__":
    with rs.Engine("smollm2-135m") as local:
        main(local)
