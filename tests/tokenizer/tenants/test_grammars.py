"""No tenant finds another's grammars."""

from __future__ import annotations

import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.grammar.schema import compile as schemas
from radixserve_tokenizer.grammar.schema import numerals, texts
from tests.tokenizer.programs.harness import append, gen
from tests.tokenizer.tenants.people import key, tenant, world

SCHEMA = wire.Constraint(kind="json_schema", source='{"type": "integer"}')


@pytest.mark.parametrize("at_once", [False, True])
def test_each_tenant_has_its_own_compiled_and_named(at_once: bool) -> None:
    it = world(tenant("a"), tenant("b"), hold=False)
    it.compiler.hold = at_once
    for program, name in enumerate(("a", "b", "a")):
        it.send(
            wire.Open(program=program, api_key=key(name)),
            append(0, "hi", program=program),
            gen(1, program=program, constraint=SCHEMA),
        )
    it.compiler.hold = False
    it.settle()
    assert it.compiler.tenants == ["a", "b"]
    grammars = [(message.owner.tenant, message.grammar) for message in it.sent(rt.Generate)]
    by_tenant = {name: {grammar.key for owner, grammar in grammars if grammar and owner == name} for name in ("a", "b")}
    assert len(grammars) == 3
    assert [len(keys) for keys in by_tenant.values()] == [1, 1]
    assert not by_tenant["a"] & by_tenant["b"]
    assert sum(bool(grammar and grammar.payload) for _, grammar in grammars) == 2
    assert len(it.of(wire.Done)) == 3


def test_a_cancelled_order_is_the_tenants_own() -> None:
    it = world(tenant("a"), tenant("b"), hold=False)
    it.compiler.hold = True
    for program, name in enumerate(("a", "b")):
        it.send(
            wire.Open(program=program, api_key=key(name)),
            append(0, "hi", program=program),
            gen(1, program=program, constraint=SCHEMA),
        )
    it.send(wire.Cancel(program=0, branches=(0,)))
    it.compiler.hold = False
    it.settle()
    assert [message.owner.tenant for message in it.sent(rt.Generate)] == ["b"]


def test_what_was_worked_out_for_one_schema_is_forgotten() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^([ab]+c)+$", "maxLength": 9}}}
    schemas.schema_grammar(schema | {"minProperties": 1})
    schemas.schema_grammar({"type": "number", "minimum": 3, "multipleOf": 7})
    kept = [texts.pattern_automaton, texts._lengths, numerals._beyond, numerals._multiple]
    assert all(one.cache_info().currsize for one in kept)
    schemas.forget()
    assert not any(one.cache_info().currsize for one in kept)
