"""Random schemas against an independent validator: the open reading accepts exactly what is valid, the narrow one nothing else."""

from __future__ import annotations

import itertools
import json

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve_tokenizer.grammar.compiler import CompileError
from radixserve_tokenizer.protocol import Constraint

NAMES = ["a", "b", "ab"]
SCALARS = [None, True, False, 0, 1, 2, 6, -3, 1.5, 0.25, "", "a", "ab", "abc", "b"]
SMALL = [1, "a", None, True]
INSTANCES = [
    *SCALARS,
    [],
    *([one] for one in SMALL),
    *([one, two] for one in SMALL for two in SMALL),
    [1, "a", 1],
    [[1]],
    [{"a": 1}],
    {},
    *({name: value} for name in NAMES for value in [*SMALL, [1], {"a": 1}]),
    *({"a": one, "b": two} for one in SMALL for two in SMALL),
    {"a": 1, "ab": "a"},
    {"a": 1, "b": 2, "ab": 1},
]

counts = st.integers(0, 3)
numbers = st.sampled_from([-3, 0, 1, 1.5, 2, 6])
patterns = st.sampled_from(["^a", "b$", "^[ab]{1,2}$", "^b?$", "c"])
types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
names = st.lists(st.sampled_from(NAMES), unique=True, max_size=2)


def keywords(schemas):
    # No count of properties: of names that aren't declared the grammar can't tell that two are different.
    named = st.dictionaries(st.sampled_from(NAMES), schemas, min_size=1, max_size=2)
    members = st.lists(schemas, min_size=1, max_size=3)
    return {
        "type": st.one_of(types, st.lists(types, min_size=1, max_size=3, unique=True)),
        "enum": st.lists(st.sampled_from([*SCALARS, [1], {"a": 1}]), min_size=1, max_size=3, unique_by=repr),
        "const": st.sampled_from([*SCALARS, [1, "a"], {"a": 1, "b": 2}]),
        "minimum": numbers,
        "exclusiveMaximum": numbers,
        "multipleOf": st.sampled_from([0.5, 2, 3]),
        "minLength": counts,
        "maxLength": counts,
        "pattern": patterns,
        "minItems": counts,
        "maxItems": counts,
        "prefixItems": members,
        "items": schemas,
        "contains": schemas,
        "maxContains": counts,
        "properties": named,
        "required": names,
        "additionalProperties": schemas,
        "patternProperties": st.dictionaries(patterns, schemas, min_size=1, max_size=1),
        "propertyNames": schemas,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), names, min_size=1, max_size=2),
        "dependentSchemas": named,
        "unevaluatedProperties": schemas,
        "unevaluatedItems": schemas,
        "allOf": members,
        "anyOf": members,
        "oneOf": members,
        "not": schemas,
        "if": schemas,
        "then": schemas,
        "else": schemas,
    }


def objects(schemas):
    fields = keywords(schemas)
    return st.sets(st.sampled_from(sorted(fields)), min_size=1, max_size=3).flatmap(
        lambda chosen: st.fixed_dictionaries({name: fields[name] for name in sorted(chosen)})
    )


schemas = st.recursive(st.one_of(st.booleans(), objects(st.booleans())), objects, max_leaves=6)


def texts(value):
    """The value as JSON, its properties in every order."""
    if isinstance(value, dict):
        for order in itertools.permutations(value):
            for members in itertools.product(*(list(texts(value[name])) for name in order)):
                yield "{" + ", ".join(f"{json.dumps(name)}: {member}" for name, member in zip(order, members, strict=True)) + "}"
    elif isinstance(value, list):
        for members in itertools.product(*(list(texts(item)) for item in value)):
            yield "[" + ", ".join(members) + "]"
    else:
        yield json.dumps(value)


def compiled(sentences, kind, schema):
    """A function that tells whether a text can be written; None if the schema is refused."""
    try:
        payload = sentences.compile(Constraint(kind=kind, source=json.dumps(schema)))
    except CompileError:
        return None
    return lambda text: sentences.accepts(payload, text)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(schema=schemas)
def test_the_open_reading_is_exact_and_the_narrow_one_is_within(sentences, schema):
    validator = jsonschema.Draft202012Validator(schema)
    is_open, narrow = (compiled(sentences, kind, schema) for kind in ("open_json_schema", "json_schema"))
    for instance in INSTANCES:
        valid = validator.is_valid(instance)
        for accepts, is_exact in ((is_open, True), (narrow, False)):
            if accepts is None:
                continue
            accepted = any(map(accepts, texts(instance)))
            assert valid or not accepted, (json.dumps(schema), instance, "is not valid, but can be written")
            assert accepted or not is_exact or not valid, (json.dumps(schema), instance, "is valid, but can't be written")
