"""Programs in groups."""

from __future__ import annotations

from itertools import count

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.groups import Groups
from tests.tokenizer.programs.harness import World, append, gen
from tests.tokenizer.tenants.people import key, tenant, world


def owners(it: World) -> list[rt.Owner]:
    return [message.owner for message in it.sent(rt.Generate)]


def ask(it: World, number: int, name: str = "", group: str = "") -> None:
    api_key = key(name) if name else ""
    it.send(wire.Open(program=number, group=group, api_key=api_key), append(0, "a", program=number), gen(1, program=number))


def test_programs_of_a_group_are_one_to_the_scheduler_and_of_no_other_tenant() -> None:
    it = world(tenant("a"), tenant("b"), hold=False)
    for number, (name, group) in enumerate([("a", "g"), ("a", "g"), ("b", "g"), ("a", "h"), ("a", ""), ("a", "")]):
        ask(it, number, name, group)
    numbers = [owner.program for owner in owners(it)]
    assert numbers[0] == numbers[1]
    assert len(set(numbers)) == 5


def test_admission_counts_programs_of_a_group_one_by_one() -> None:
    it = World()
    for number in range(3):
        ask(it, number, group="g")
    assert it.core.services.admission.num_programs == 3
    it.send(*(wire.Close(program=number) for number in range(3)))
    assert it.core.services.admission.num_programs == 0
    it.send(*(wire.Open(program=number, group="g") for number in range(10, 14)))
    assert len(it.core.services.admission._expected) == 4


def test_the_memory_of_groups_is_bounded_for_each_tenant() -> None:
    numbers = count(1)
    groups = Groups(lambda: next(numbers))
    other = groups.number_of("b", "kept")
    first = groups.number_of("a", "first")
    for index in range(5000):
        groups.number_of("a", f"g{index}")
    assert groups.number_of("b", "kept") == other
    assert groups.number_of("a", "first") != first
    assert len(groups._groups["a"]) == 1024


def test_a_long_group_is_refused() -> None:
    it = World().send(wire.Open(program=1, group="x" * 257))
    assert it.one(wire.Refused).status == 400
