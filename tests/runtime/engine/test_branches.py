"""The runtime's memory of token logs."""

from __future__ import annotations

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
