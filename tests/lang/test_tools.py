"""Tools from plain callables: the schema that the model sees, and the values that the function gets."""

from __future__ import annotations

import asyncio
import datetime
import functools
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import radixserve_lang as rs
from radixserve_lang.tools import as_tools


class Place(BaseModel):
    """Somewhere."""

    title: str
    height: float = 0.0


@dataclass
class Span:
    first: int
    last: int


class Extra(TypedDict, total=False):
    note: str


@rs.tool
def search(query: str, top_k: int = 3) -> list[str]:
    """Search the corpus.

    Args:
        query: What to look for.
        top_k: How many results.
    """
    return [query] * top_k


def schema_of(tool: rs.AnyTool[Any]) -> dict[str, Any]:
    return json.loads(tool.schema)


def test_a_schema_from_the_signature_and_the_docstring() -> None:
    assert search.name == "search"
    assert search.description == "Search the corpus."
    assert schema_of(search) == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "top_k": {"type": "integer", "default": 3, "description": "How many results."},
        },
        "required": ["query"],
    }


def test_it_is_still_the_function() -> None:
    assert search("a", top_k=2) == ["a", "a"]
    assert isinstance(search, rs.Tool)
    assert search.__doc__ is not None
    assert repr(search) == "<Tool search>"

    @rs.tool
    async def fetch(url: str) -> str:
        return url

    assert isinstance(fetch, rs.AsyncTool)
    assert asyncio.run(fetch("u")) == "u"


@pytest.mark.parametrize(
    "docstring",
    [
        "Look it up.\n\nArgs:\n    word: The word.\n",
        "Look it up.\n\nParameters\n----------\nword : str\n    The word.\n",
        "Look it up.\n\n:param word: The word.\n",
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_docstring_styles(docstring: str) -> None:
    def look(word: str) -> str:
        return word

    look.__doc__ = docstring
    made = rs.tool(look)
    assert made.description == "Look it up."
    assert schema_of(made)["properties"]["word"] == {"type": "string", "description": "The word."}


def test_all_kinds_of_parameters() -> None:
    @rs.tool(name="everything", description="All of it.")
    def every(
        place: Place,
        span: Span,
        extra: Extra,
        unit: Literal["m", "km"],
        either: int | str,
        count: Annotated[int, Field(ge=1, description="From 1 up.")] = 1,
        names: list[str] | None = None,
        when: datetime.date | None = None,
    ) -> str:
        """Ignored.

        Args:
            count: Also ignored, since the Field says it.
            unit: Of length.
        """
        return ""

    schema = schema_of(every)
    assert (every.name, every.description) == ("everything", "All of it.")
    properties = schema["properties"]
    assert set(schema["required"]) == {"place", "span", "extra", "unit", "either"}
    assert properties["unit"] == {"type": "string", "enum": ["m", "km"], "description": "Of length."}
    assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert properties["count"] == {"type": "integer", "minimum": 1, "default": 1, "description": "From 1 up."}
    # A property that is called title stays; titles that pydantic makes up go.
    assert schema["$defs"]["Place"]["properties"]["title"] == {"type": "string"}
    given = {
        "place": {"title": "Zug"},
        "span": {"first": 1, "last": 2},
        "extra": {},
        "unit": "m",
        "either": "x",
        "when": "2026-01-02",
    }
    values = every.parse(json.dumps(given))
    assert values == {
        "place": Place(title="Zug"),
        "span": Span(1, 2),
        "extra": {},
        "unit": "m",
        "either": "x",
        "count": 1,
        "names": None,
        "when": datetime.date(2026, 1, 2),
    }


def test_names_that_pydantic_wants_for_itself() -> None:
    @rs.tool
    def awkward(json: str, model_config: int, copy: bool = False, _private: str = "p", schema: Any = object) -> str:
        return json

    assert set(schema_of(awkward)["properties"]) == {"json", "model_config", "copy", "_private", "schema"}
    assert awkward.parse('{"json": "a", "model_config": 2}') == {
        "json": "a",
        "model_config": 2,
        "copy": False,
        "_private": "p",
        "schema": object,
    }


def test_local_types_and_other_callables() -> None:
    class Local(BaseModel):
        x: int

    class Thing:
        def method(self, local: Local) -> int:
            return local.x

        def __call__(self, local: Local) -> int:
            return local.x

    @rs.tool
    def near(local: Local) -> int:
        return local.x

    bound = rs.tool(Thing().method)
    called = rs.tool(name="thing")(Thing())
    part = rs.tool(functools.partial(near.__wrapped__, local=Local(x=1)))
    assert [one.name for one in (near, bound, called, part)] == ["near", "method", "thing", "near"]
    for one in (near, bound, called):
        assert one.run(one.parse('{"local": {"x": 3}}')) == 3
    assert part.run(part.parse("{}")) == 1

    @rs.tool
    def nothing() -> str:
        return "n"

    assert nothing.parse("") == nothing.parse("{}") == {}


@pytest.mark.parametrize("arguments", ['{"query": 3}', "{}", '{"query": "a", "more": 1}', '{"query": "a"', "[]"])
def test_arguments_that_do_not_fit(arguments: str) -> None:
    with pytest.raises(ValueError, match=r"Arguments|JSON"):
        search.parse(arguments)


def test_what_can_not_be_a_tool() -> None:
    def many(*words: str) -> str:
        return ""

    def named(**words: str) -> str:
        return ""

    def positional(word: str, /) -> str:
        return word

    def bare(word) -> str:  # type: ignore[no-untyped-def]
        return word

    def odd(good: int, bad: asyncio.Queue[int]) -> str:
        return ""

    def missing(word: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821
        return ""

    def defaulted(word: str = Field(description="x")) -> str:
        return word

    class Thing:
        def method(self, word: str) -> str:
            return word

    for function, words in [
        (many, r"tool many\(\): parameter 'words' takes any number of values; use one parameter that is a list"),
        (named, r"tool named\(\): parameter 'words' takes any name; use one parameter that is a dict"),
        (positional, r"tool positional\(\): parameter 'word' is positional-only"),
        (bare, r"tool bare\(\): parameter 'word' has no annotation; write its type"),
        (odd, r"tool odd\(\): parameter 'bad' has a type that JSON can't carry"),
        (missing, r"tool missing\(\): an annotation can't be resolved: name 'Nowhere'"),
        (defaulted, r"tool defaulted\(\): the default of parameter 'word' is a Field; write word: Annotated"),
        (Thing.method, r"tool method\(\): it is a method; make the tool of a bound one, as in rs\.tool\(thing\.method\)"),
        (lambda word: word, "can't be the name of a tool"),
        (3, "not callable"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            rs.tool(function)  # type: ignore[call-overload]


def test_a_set_of_tools() -> None:
    def plain(word: str) -> str:
        return word

    first, second = as_tools([search, plain])
    assert first is search
    assert second.name == "plain"
    assert as_tools((plain,))[0] is second  # its schema is made once
    for wrong, words in [(search, "tuple or list"), ((), "at least one"), ((search, search), "two tools are named 'search'")]:
        with pytest.raises((TypeError, ValueError), match=words):
            as_tools(wrong)  # type: ignore[arg-type]
