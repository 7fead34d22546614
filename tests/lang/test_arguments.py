"""What `gen` and `run` are given: what the types that are asked for become, and what is said of what can't be meant."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, Field, HttpUrl, field_validator

import radixserve_lang as rs
from radixserve_lang import testing
from radixserve_lang.schema import output_type
from tests.lang.test_calls import called

if TYPE_CHECKING:
    from tests.lang.fake_server import Engine, FakeServer


class Sky(Enum):
    CLEAR = "clear"
    RAIN = "rain"


@pytest.mark.parametrize(
    ("json_type", "expected"),
    [
        (set[Sky], {"items": {"enum": ["clear", "rain"], "title": "Sky", "type": "string"}, "type": "array"}),
        (frozenset[bool], {"items": {"type": "boolean"}, "type": "array"}),
        (Decimal, {"type": "number"}),
        (Annotated[Decimal, Field(gt=1, decimal_places=2)], {"type": "number", "exclusiveMinimum": 1.0}),
        (
            Annotated[Decimal, Field(max_digits=5, decimal_places=2)],
            {"type": "string", "pattern": r"^-?(?:0|[1-9][0-9]{0,2})(?:\.[0-9]{1,2})?$"},
        ),
        (Annotated[Decimal, Field(ge=0, decimal_places=0)], {"type": "string", "pattern": "^(?:0|[1-9][0-9]{0,14})$"}),
        (AnyUrl, {"format": "uri", "minLength": 1, "type": "string"}),
    ],
)
def test_what_is_asked_for_is_what_is_accepted(json_type: Any, expected: dict[str, Any]) -> None:
    schema = json.loads(output_type(json_type).schema)
    defined = schema.pop("$defs", {})
    if "$ref" in schema.get("items", {}):
        schema["items"] = defined[schema["items"]["$ref"].rpartition("/")[2]]
    assert schema == expected


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_urls_and_amounts_that_match_are_values(data: st.DataObject) -> None:
    for json_type in (
        HttpUrl,
        Annotated[Decimal, Field(max_digits=5, decimal_places=2)],
        Annotated[Decimal, Field(ge=0, decimal_places=3)],
    ):
        output = output_type(json_type)
        text = data.draw(st.from_regex(re.compile(json.loads(output.schema)["pattern"], re.ASCII), fullmatch=True))
        assert output.parse(json.dumps(text)) is not None


@pytest.mark.parametrize(
    ("json_type", "words"),
    [
        (range, r"json=<class 'range'> can't be generated \(Unable to generate.*\): give a pydantic model, a dataclass"),
        ({"enum": {1, 2}}, r"json=\{'enum': \{1, 2\}\} is no JSON Schema"),
    ],
)
def test_what_is_no_type_of_values(engine: Engine, json_type: Any, words: str) -> None:
    @rs.function
    def asks(s: rs.State) -> Any:
        return s.gen(json=json_type).value

    with pytest.raises(TypeError, match=words) as caught:
        asks.run(engine=engine)
    assert "arbitrary_types_allowed" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stop": 5}, r"gen\(stop=5\): a list is needed"),
        ({"stop_token_ids": 5}, r"gen\(stop_token_ids=5\): a list is needed"),
        ({"logit_bias": [3]}, r"gen\(logit_bias=\[3\]\): a dict of token ids and numbers is needed"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(engine: Engine, options: dict[str, Any], words: str) -> None:
    @rs.function
    def asks(s: rs.State) -> str:
        s += "x"
        return s.gen(**options).value

    with pytest.raises(TypeError, match=words):
        asks.run(engine=engine)


def test_what_is_no_engine_no_budget_no_var_and_no_state(engine: Engine) -> None:
    @rs.function
    def completes(s: rs.State, given: Any) -> None:
        rs.as_completed([given])

    @rs.function
    def leasing(s: rs.State) -> None:
        s.lease("a minute")  # type: ignore[arg-type]

    wrong: Any = completes
    with pytest.raises(TypeError, match=r"engine= takes an rs\.Engine\(\.\.\.\) or what rs\.connect"):
        wrong.run(1, engine="smollm2-135m")
    with pytest.raises(TypeError, match=r"budget= takes an rs\.Budget.*not 5"):
        wrong.run(1, engine=engine, budget=5)
    with pytest.raises(TypeError, match=r"detached_ttl_s= takes seconds, not 'a minute'"):
        completes.using(detached_ttl_s="a minute").run(1, engine=engine)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a lease takes seconds, not 'a minute'"):
        leasing.run(engine=engine)
    with pytest.raises(TypeError, match=r"as_completed\(\) takes Vars, as gen\(\) returns them, not 7"):
        wrong.run(7, engine=engine)
    with pytest.raises(TypeError, match=r"called without a state, with 'Hello'.*completes\.run\("):
        wrong("Hello", 1)


def test_a_tool_s_text_with_half_a_character_is_the_tool_s_fault(engine: Engine, server: FakeServer) -> None:
    def halved(x: int) -> str:
        if x:
            raise ValueError("\ud83d")
        return "\ud83d"

    @rs.function
    def one(s: rs.State, *, forgive: bool) -> Any:
        call = s.gen(tools=(halved,)).value
        return s.call(call, on_error="append") if forgive else s.call(call)

    server.answer = lambda gen: called(gen, ("halved", '{"x": 0}'))
    with pytest.raises(rs.ToolError, match=r"tool halved\(\).*half a character.*errors='replace'"):
        one.run(forgive=False, engine=engine)
    server.answer = lambda gen: called(gen, ("halved", '{"x": 1}'))
    assert one.run(forgive=True, engine=engine).value.text == "Error: ValueError: \\ud83d"


def test_a_var_is_used_for_its_value_by_reading_it(engine: Engine) -> None:
    @rs.function
    def misuse(s: rs.State) -> None:
        v: Any = s.gen()
        for wrong in (
            lambda: v + "a",
            lambda: "a" + v,
            lambda: v > 3,
            lambda: "a" in v,
            lambda: len(v),
            lambda: v[0],
            lambda: int(v),
        ):
            with pytest.raises(rs.VarInTextError, match=r"used as if it were its value.*v\.value"):
                wrong()
        with pytest.raises(AttributeError, match=r"the Var of gen at .*test_arguments\.py.* has no 'lower'.*v\.value\.lower"):
            v.lower()
        assert not hasattr(v, "_repr_html_")
        assert list(v) == [v.value]
        state: Any = s
        with pytest.raises(TypeError, match=r"write s \+= \.\.\. at .*test_arguments\.py:\d+"):
            state + "x"

    misuse.run(engine=engine)


class Odd(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def looked_up(cls, number: int) -> int:
        return {1: 1}[number]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_validator_of_a_type_that_raises_something_else_is_told_with_its_line(retries: int) -> None:
    @rs.function
    def asks(s: rs.State) -> Odd:
        s += "x"
        return s.gen(json=Odd, retries=retries).value

    with testing.Scripted([{"number": 1}]) as engine:
        assert asks.run(engine=engine).value.number == 1
    with (
        testing.Scripted([{"number": 2}]) as engine,
        pytest.raises(
            rs.InvalidValueError, match=r"gen at .*test_arguments\.py:\d+.*the validator raised KeyError.*: 2"
        ) as caught,
    ):
        asks.run(engine=engine)
    assert isinstance(caught.value.__cause__, KeyError)


def test_json_that_is_nested_too_deeply_is_no_value_and_harms_nothing() -> None:
    @rs.function
    def asks(s: rs.State) -> Any:
        s += "x"
        return s.gen(json={"type": "array"}).value

    engine = testing.Scripted(["[" * 100_000 + "]" * 100_000, [1]])
    with pytest.raises(rs.OpError, match=r"gen at .*test_arguments\.py.*is no JSON") as caught:
        asks.run(engine=engine)
    assert len(str(caught.value)) < 1000
    assert asks.run(engine=engine).value == [1]
    with pytest.raises(testing.ScriptError, match="is no JSON"):
        engine.close()


def test_a_method_is_no_program() -> None:
    with pytest.raises(TypeError, match=r"told\(\) is a method.*write a function"):

        class Told:
            @rs.function  # type: ignore[arg-type]
            def told(self, s: rs.State) -> None: ...
