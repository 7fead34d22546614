"""Token logs against plain lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radixserve_runtime.protocol import log_hash
from radixserve_tokenizer.programs.log import TokenLog
from radixserve_tokenizer.programs.seeds import op_seed, unsigned

IDS = st.lists(st.integers(0, 9), max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), IDS, st.integers(0, 99)),
        st.tuples(st.just("cut"), st.just([]), st.integers(0, 99)),
        st.tuples(st.just("rewrite"), IDS, st.integers(0, 99)),
        st.tuples(st.just("fork"), IDS, st.integers(0, 99)),
        st.tuples(st.just("told"), IDS, st.integers(0, 99)),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_log_is_what_a_list_would_be(steps: list[tuple[str, list[int], int]]) -> None:
    log, plain = TokenLog(), list[int]()
    marks = [(log.mark(), list[int]())]
    others: list[tuple[TokenLog, list[int]]] = []
    told = list[int]()
    for kind, ids, number in steps:
        if kind == "append":
            log.append(ids)
            plain = plain + ids
            marks.append((log.mark(), plain))
        elif kind == "cut":
            mark, plain = marks[number % len(marks)]
            log.cut(mark)
            marks = marks[: number % len(marks) + 1]
        elif kind == "rewrite":
            keep = number % (len(plain) + 1)
            log.rewrite(keep, ids)
            plain = plain[:keep] + ids
            marks.append((log.mark(), plain))
        elif kind == "told":
            log.known, told = log.mark(), plain
        else:
            child = log.fork()
            child.append(ids)
            others.append((child, plain + ids))
        assert log.ids_from(0) == tuple(plain)
        assert log.mark().hash == log_hash(plain)
        for start in range(len(plain) + 1):
            assert log.ids_from(start) == tuple(plain[start:])
        # What the runtime was told never covers more than what still holds.
        assert tuple(plain[: log.known.length]) == tuple(told[: log.known.length])
        assert log.known.hash == log_hash(told[: log.known.length])
    for other, expected in others:
        assert other.ids_from(0) == tuple(expected)
        assert other.mark().hash == log_hash(expected)
        assert other.known.length == 0


def test_a_fork_shares_the_prefix() -> None:
    log = TokenLog()
    log.append(list(range(1024)))
    children = [log.fork() for _ in range(64)]
    assert len({id(child._shared) for child in children}) == 1  # pyright: ignore[reportPrivateUsage]


def test_seeds_are_64_bits_and_differ_by_each_part() -> None:
    seeds = {op_seed(s, path, i) for s in (0, 1) for path in ((), (0,), (0, 0), (1,), (10,), (1, 0)) for i in (0, 1, 10)}
    assert len(seeds) == 36
    assert all(0 <= seed < 1 << 64 for seed in seeds)
    assert unsigned(-1) == (1 << 64) - 1
