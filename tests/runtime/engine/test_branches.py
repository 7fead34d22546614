"""The runtime's memory of token logs."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve_runtime.engine.branches import BranchTable, MissingBaseError
from radixserve_runtime.protocol import Base, log_hash

IDS = st.lists(st.integers(0, 50_000), max_size=20)


@given(IDS, IDS)
def test_hash_does_not_depend_on_how_the_log_was_cut(a: list[int], b: list[int]) -> None:
    assert log_hash(b, log_hash(a)) == log_hash(a + b)


@given(IDS, IDS, IDS, st.integers(0, 40))
def test_extend_fork_and_roll_back(a: list[int], b: list[int], c: list[int], cut: int) -> None:
    table = BranchTable()
    assert table.apply(1, Base(new_ids=tuple(a))) == a
    assert table.apply(1, Base(length=len(a), hash=log_hash(a), new_ids=tuple(b))) == a + b
    table.fork(1, (2, 3), Base(length=len(a + b), hash=log_hash(a + b)))
    whole = a + b
    cut = min(cut, len(whole))
    assert table.apply(2, Base(length=cut, hash=log_hash(whole[:cut]), new_ids=tuple(c))) == whole[:cut] + c
    assert table.apply(3, Base(length=len(whole), hash=log_hash(whole))) == whole


def test_a_base_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    table = BranchTable()
    table.apply(1, Base(new_ids=(1, 2, 3)))
    for base in (Base(length=4, hash=0), Base(length=3, hash=log_hash([1, 2, 4])), Base(length=2, hash=log_hash([1, 2, 3]))):
        with pytest.raises(MissingBaseError):
            table.apply(1, base)
    with pytest.raises(MissingBaseError):
        table.apply(9, Base(length=1, hash=log_hash([1])))
    assert table.apply(1, Base(length=3, hash=log_hash([1, 2, 3]))) == [1, 2, 3]


def test_the_copy_given_out_is_the_callers() -> None:
    table = BranchTable()
    table.apply(1, Base(new_ids=(1, 2))).append(99)
    assert table.apply(1, Base(length=2, hash=log_hash([1, 2]))) == [1, 2]
    table.drop((1, 77))
    assert len(table) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), IDS, st.booleans()), max_size=12))
def test_forks_of_forks_hold_what_copies_would(steps: list[tuple[int, int, list[int], bool]]) -> None:
    table, plain = BranchTable(), {0: list[int]()}
    for branch, cut, new, forks in steps:
        before = plain.get(branch)
        if before is None:
            continue
        kept = before[: min(cut, len(before))]
        base = Base(length=len(kept), hash=log_hash(kept), new_ids=tuple(new))
        plain[branch] = kept + new
        if forks:
            children = tuple(range(len(plain), len(plain) + 2))
            table.fork(branch, children, base)
            plain.update({child: list(plain[branch]) for child in children})
        else:
            assert table.apply(branch, base) == plain[branch]
    for branch, ids in plain.items():
        if ids:
            assert table.apply(branch, Base(length=len(ids), hash=log_hash(ids))) == ids


def test_thousands_of_forks_of_a_long_log_take_no_room() -> None:
    ids = tuple(range(1000, 5000))
    table = BranchTable()
    tracemalloc.start()
    for number in range(64):
        base = Base(new_ids=ids) if number == 0 else Base(length=len(ids), hash=log_hash(ids))
        table.fork(1, tuple(range(2 + 256 * number, 258 + 256 * number)), base)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table) == 1 + 64 * 256
    assert used < 16 << 20, "copies would be 500 MiB"
