"""Whose op begins next."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.runnable import Runnable
from tests.tokenizer.programs.harness import World, append, gen, text_model


def branch(tenant: str, number: int) -> Any:
    """As much of a branch as decides whose turn it is."""
    return SimpleNamespace(program=SimpleNamespace(tenant=tenant), number=number)


def test_a_tenant_with_many_branches_does_not_hold_up_one_with_one() -> None:
    runnable = Runnable()
    runnable.extend([*(branch("alice", number) for number in range(100)), branch("bob", 0)])
    names = [str(runnable.popleft().program.tenant) for _ in range(101)]
    assert names == ["alice", "bob", *["alice"] * 99]
    assert not runnable


def test_each_tenants_branches_keep_their_order() -> None:
    runnable = Runnable()
    runnable.extend(branch("alice" if number % 3 else "bob", number) for number in range(6))
    assert [runnable.popleft().number for _ in range(3)] == [0, 1, 3]
    runnable.append(branch("bob", 6))
    assert [runnable.popleft().number for _ in range(4)] == [2, 6, 4, 5]


def test_text_in_many_small_pieces_takes_the_room_of_one() -> None:
    it = World().send(wire.Open(program=1))
    tracemalloc.start()
    it.send(*(append(number, "x") for number in range(16_000)))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 32 << 20, "a copy for each mark would be 128 MB"
    it.send(wire.Rollback(program=1, op=16_000, branch=0, to_op=3), append(16_001, "AB"), gen(16_002, max_tokens=1))
    assert it.prompt_text() == "xxxAB"
    assert text_model().tokenizer.encode("xxxAB") == list(it.runtime.prompts.popitem()[1])


def test_many_unknown_branches_are_told_once() -> None:
    it = World().send(wire.Open(program=1), wire.Cancel(program=1, branches=tuple(range(7, 16_000))))
    assert it.one(wire.Failed).message.startswith("branch 7 is not known")
