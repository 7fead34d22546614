"""A JSON object of six fields from a sentence, with the schema enforced and without, to price the constraint."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import orjson

from radixserve.bench.ask import Output

if TYPE_CHECKING:
    from radixserve.bench.ask import Message
    from radixserve.bench.run import Run

_ROLES = ("admin", "editor", "viewer")
#: Bounded fields: a valid answer fits into 96 tokens.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 16},
        "role": {"type": "string", "enum": list(_ROLES)},
        "active": {"type": "boolean"},
        "level": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["name", "age", "city", "role", "active", "level"],
    "additionalProperties": False,
}
_NAMES = [
    "Ada",
    "Bruno",
    "Carla",
    "David",
    "Elena",
    "Felix",
    "Greta",
    "Hugo",
    "Irene",
    "Jonas",
    "Karin",
    "Lucas",
    "Marta",
    "Nils",
    "Olga",
    "Peter",
]
_FAMILIES = ["Alvarez", "Brown", "Conti", "Dubois", "Eriksen", "Fischer", "Garcia", "Hansen"]
_CITIES = ["Athens", "Bergen", "Cairo", "Delhi", "Exeter", "Florence", "Geneva", "Havana"]


def matches(text: str) -> bool:
    """Whether a text is an object as `SCHEMA` wants it."""
    try:
        found: Any = orjson.loads(text)
    except ValueError:
        return False
    if not isinstance(found, dict):
        return False
    value = cast("dict[str, Any]", found)
    return set(value) == set(SCHEMA["required"]) and all(
        (
            isinstance(value["name"], str) and len(value["name"]) <= 16,
            type(value["age"]) is int and 0 <= value["age"] <= 120,
            isinstance(value["city"], str) and len(value["city"]) <= 16,
            value["role"] in _ROLES,
            isinstance(value["active"], bool),
            type(value["level"]) is int and 1 <= value["level"] <= 9,
        )
    )


def _profile(source: random.Random, beginning: str) -> list[Message]:
    active = source.choice(("is active", "is not active"))
    sentence = (
        f"{source.choice(_NAMES)} {source.choice(_FAMILIES)}, aged {source.randint(20, 70)}, of {source.choice(_CITIES)}, "
        f"has the role {source.choice(_ROLES)} at level {source.randint(1, 9)} and {active}."
    )
    return [
        (
            "system",
            f"{beginning} You turn a sentence into one JSON object with the keys name, age, city, role, active and level, "
            "and say nothing else.",
        ),
        ("user", f"{sentence} Write the JSON object."),
    ]


async def _ask(run: Run, schema: dict[str, Any] | None) -> None:
    shape = run.shape
    output = Output(shape.output_tokens, exact=False, schema=schema)
    # The same sentences with and without the constraint, but not the same beginning, or the second pass would find the first one's KV.
    source = random.Random(f"profiles {run.seed}")
    beginning = "Be brief." if schema is None else "Be strict."
    prompts = [_profile(source, beginning) for _ in range(shape.requests)]
    await run.all([partial(run.ask, prompt, output) for prompt in prompts], shape.concurrency)
    texts = [one.texts[0] for one in run.outcomes if not one.error and one.texts]
    run.extras["valid"] = sum(map(matches, texts))
    run.extras["sample"] = texts[0][:200] if texts else ""


async def constrained(run: Run) -> None:
    """The schema is enforced."""
    await _ask(run, SCHEMA)


async def unconstrained(run: Run) -> None:
    """It is not; the prompt asks for the same."""
    await _ask(run, None)
