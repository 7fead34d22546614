"""The grammar service with its real worker process."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import string
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from radixserve_tokenizer.grammar.cache import FailureCache, SharedRoom
from radixserve_tokenizer.grammar.compiler import CompileError, Compiler
from radixserve_tokenizer.grammar.messages import Compile, FrameError, FrameReader, Start, decode_to_worker, frame
from radixserve_tokenizer.grammar.service import MAX_QUEUED, Compiled, CompileFailed, GrammarService
from radixserve_tokenizer.protocol import Constraint

EOS = 256
VOCABULARY = [bytes([byte]) for byte in range(256)] + [b"", b"", b'": ', b", ", b'{"', b"ab", "é".encode(), b"\n\n", b"  "]
SLOW = Constraint(kind="ebnf", source="root ::= (" + " | ".join(f"[^{char}]{{1,2000}}" for char in "abcde") + ") [^f]{1,2000}")
"""Takes the compiler some twenty seconds."""


def wait_for(service: GrammarService, count: int, limit_s: float = 90.0):
    """Outcomes as a server's loop would collect them."""
    outcomes = []
    deadline = time.monotonic() + limit_s
    while len(outcomes) < count:
        assert time.monotonic() < deadline, f"only {outcomes}"
        poll = select.poll()
        poll.register(service.fileno(), select.POLLIN)
        if poll.poll(50):
            outcomes += service.receive()
        service.tick()
    return outcomes


@pytest.fixture
def service():
    service = GrammarService(VOCABULARY, [EOS], timeout_s=20.0, memory_mb=512)
    yield service
    service.close()


def gone(pid: int, limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_each_kind_compiles_and_what_comes_out_is_enforced(service, sentences):
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    constraints = [
        Constraint(kind="json_object"),
        Constraint(kind="json_schema", source=schema),
        Constraint(kind="regex", source="a+b"),
        Constraint(kind="ebnf", source='root ::= "x" | "y"'),
    ]
    for ticket, constraint in enumerate(constraints):
        service.submit(ticket, constraint, "t")
    outcomes = wait_for(service, 4)
    assert [outcome.ticket for outcome in outcomes] == [0, 1, 2, 3]
    assert all(isinstance(outcome, Compiled) for outcome in outcomes)
    assert len({outcome.key for outcome in outcomes}) == 4
    for outcome, text in zip(outcomes, ['{"k": []}', '{"a": 7}', "aab", "y"], strict=True):
        assert sentences.accepts(outcome.payload, text)
    assert service.num_waiting == 0


def test_refusals_come_the_same_way_and_wake_the_poller(service):
    service.submit(7, Constraint(kind="json_schema", source='{"properties": {"x": {}'), "t")
    poll = select.poll()
    poll.register(service.fileno(), select.POLLIN)
    assert poll.poll(1000)
    [outcome] = service.receive()
    assert outcome == CompileFailed(7, "the schema: it is not valid JSON: Expecting ',' delimiter: line 1 column 24 (char 23)")
    service.submit(8, Constraint(kind="regex", source="(a"), "t")
    service.submit(9, Constraint(kind="ebnf", source=""), "t")
    assert [type(outcome) for outcome in service.receive()] == [CompileFailed, CompileFailed]


def test_what_the_compiler_rejects_fails_with_its_message(service):
    service.submit(1, Constraint(kind="ebnf", source="root ::= missing"), "t")
    service.submit(2, Constraint(kind="regex", source="ok"), "t")
    service.submit(3, Constraint(kind="json_schema", source='{"properties": {"x": {"requird": ["a"]}}}'), "t")
    first, second, third = wait_for(service, 3)
    assert isinstance(first, CompileFailed)
    assert "missing" in first.message
    assert isinstance(second, Compiled)
    assert third == CompileFailed(3, "/properties/x: keyword 'requird' can't be enforced")


def test_equal_constraints_are_compiled_once(service):
    raw = '{"enum": ["在线"]}'
    escaped = r'{ "enum" : ["\u5728\u7ebf"] }'
    service.submit(1, Constraint(kind="json_schema", source=raw), "t")
    service.submit(2, Constraint(kind="json_schema", source=escaped), "t")
    assert service.num_waiting == 1
    first, second = wait_for(service, 2)
    assert (first.key, first.payload) == (second.key, second.payload)
    pid = service.worker_pid
    os.kill(pid, signal.SIGSTOP)  # the cache answers without the worker
    try:
        service.submit(3, Constraint(kind="json_schema", source=raw), "t")
        assert service.receive() == [Compiled(3, first.key, first.payload)]
    finally:
        os.kill(pid, signal.SIGCONT)


def test_the_worker_leaves_the_cores_to_others(service):
    """Also where they are shared out by session first, in which a niceness alone says nothing to other sessions."""
    service.submit(1, Constraint(kind="choice", source='["a"]'), "a")
    wait_for(service, 1)
    pid = service.worker_pid
    assert psutil.Process(pid).nice() > 0
    assert os.getsid(pid) == service.keeper_pid
    group = Path(f"/proc/{pid}/autogroup")
    assert not group.exists() or int(group.read_text().rsplit(maxsplit=1)[1]) > 0
    assert os.sched_getaffinity(pid) == {max(os.sched_getaffinity(0))}


def test_a_job_that_never_came_to_its_turn_may_be_sent_again():
    """The worker comes last; a busy machine says nothing against a grammar."""
    service = GrammarService(VOCABULARY, [EOS], timeout_s=0.5, memory_mb=4096)
    try:
        service.submit(1, Constraint(kind="regex", source="ab"), "t")
        wait_for(service, 1)
        os.kill(service.worker_pid, signal.SIGSTOP)
        service.submit(2, Constraint(kind="regex", source="cd"), "t")
        (starved,) = wait_for(service, 1)
        assert isinstance(starved, CompileFailed)
        assert starved.retryable
        assert "the server is busy" in starved.message
        service.submit(3, Constraint(kind="regex", source="cd"), "t")
        assert isinstance(wait_for(service, 1)[0], Compiled)
    finally:
        service.close()


def test_a_catastrophic_grammar_is_killed_and_the_next_one_works():
    service = GrammarService(VOCABULARY, [EOS], timeout_s=0.5, memory_mb=4096)
    try:
        service.submit(0, Constraint(kind="regex", source="warm"), "t")
        wait_for(service, 1)
        pid, keeper = service.worker_pid, service.keeper_pid
        service.submit(1, SLOW, "t")
        service.submit(2, Constraint(kind="regex", source="ab"), "t")
        first, second = wait_for(service, 2)
        assert service.keeper_pid == keeper, "what took a second to load is still there"
        assert first == CompileFailed(1, "compiling it took longer than 0.5 s: simplify it")
        assert isinstance(second, Compiled)
        assert service.worker_pid != pid
        assert gone(pid)
        assert not first.retryable
        # Sent again it fails at once, without another half second of the worker.
        service.submit(3, SLOW, "t")
        assert service.receive() == [CompileFailed(3, first.message)]
    finally:
        service.close()


def test_the_worker_is_bounded_in_memory():
    service = GrammarService(VOCABULARY, [EOS], timeout_s=60.0, memory_mb=48)
    try:
        keeper = service.keeper_pid
        service.submit(1, Constraint(kind="ebnf", source='root ::= ([^b]{1,2000} "a"){1,3}'), "t")
        service.submit(2, Constraint(kind="regex", source="ab"), "t")
        outcomes = {outcome.ticket: outcome for outcome in wait_for(service, 2)}
        assert isinstance(outcomes[1], CompileFailed)
        # Which of the two depends on where in the compiler it runs out.
        assert "memory" in outcomes[1].message or "crashed" in outcomes[1].message
        assert isinstance(outcomes[2], Compiled)
        assert service.keeper_pid == keeper
    finally:
        service.close()


def test_a_killed_worker_fails_its_job_alone(service):
    service.submit(0, Constraint(kind="regex", source="warm"), "t")
    wait_for(service, 1)
    service.submit(1, SLOW, "t")
    service.submit(2, Constraint(kind="regex", source="ab"), "t")
    os.kill(service.worker_pid, signal.SIGKILL)
    outcomes = {outcome.ticket: outcome for outcome in wait_for(service, 2)}
    assert isinstance(outcomes[1], CompileFailed)
    assert "crashed" in outcomes[1].message
    assert isinstance(outcomes[2], Compiled)
    # Idle, too.
    pid = service.worker_pid
    os.kill(pid, signal.SIGKILL)
    service.submit(3, Constraint(kind="regex", source="ba"), "t")
    [outcome] = wait_for(service, 1)
    assert outcome.ticket == 3
    assert service.worker_pid != pid


def test_a_killed_keeper_takes_its_worker_along_and_both_come_again(service):
    service.submit(0, Constraint(kind="regex", source="warm"), "t")
    wait_for(service, 1)
    pid, keeper = service.worker_pid, service.keeper_pid
    service.submit(1, SLOW, "t")
    service.submit(2, Constraint(kind="regex", source="ab"), "t")
    os.kill(keeper, signal.SIGKILL)
    outcomes = {outcome.ticket: outcome for outcome in wait_for(service, 2)}
    assert isinstance(outcomes[1], CompileFailed)
    assert isinstance(outcomes[2], Compiled)
    assert service.keeper_pid != keeper
    assert gone(pid)
    assert gone(keeper)


def test_many_killed_workers_leave_neither_zombies_nor_descriptors(service):
    def alive() -> list[psutil.Process]:
        return psutil.Process(service.keeper_pid).children()

    service.submit(0, Constraint(kind="regex", source="warm"), "t")
    wait_for(service, 1)
    mine, keepers = psutil.Process().num_fds(), psutil.Process(service.keeper_pid).num_fds()
    for _ in range(5):
        pid = service.worker_pid
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30.0
        while service.worker_pid in (pid, None):
            assert time.monotonic() < deadline
            assert service.receive() == []
            service.tick()
            time.sleep(0.01)
    assert [child.pid for child in alive()] == [service.worker_pid]
    assert psutil.Process().num_fds() == mine
    assert psutil.Process(service.keeper_pid).num_fds() == keepers
    assert psutil.Process(service.keeper_pid).num_threads() == 1, "a fork would lose the others"


def test_an_interrupt_from_the_terminal_ends_neither(service):
    service.submit(0, Constraint(kind="regex", source="warm"), "t")
    wait_for(service, 1)
    pids = service.worker_pid, service.keeper_pid
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    service.submit(1, Constraint(kind="regex", source="ab"), "t")
    assert isinstance(wait_for(service, 1)[0], Compiled)
    assert (service.worker_pid, service.keeper_pid) == pids


def test_cancelled_tickets_have_no_outcome(service):
    service.submit(1, Constraint(kind="regex", source="a1"), "t")
    service.submit(2, Constraint(kind="regex", source="a2"), "t")
    service.submit(3, Constraint(kind="regex", source="a2"), "t")
    service.submit(4, Constraint(kind="regex", source="(x"), "t")
    for ticket in (1, 2, 4, 99):
        service.cancel(ticket)
    assert service.num_waiting == 1
    assert [outcome.ticket for outcome in wait_for(service, 1)] == [3]


def test_the_queue_is_bounded(service):
    for ticket in range(MAX_QUEUED + 1):
        service.submit(ticket, Constraint(kind="regex", source=f"a{ticket}"), "t")
    [outcome] = service.receive()
    assert outcome.ticket == MAX_QUEUED
    assert "waiting" in outcome.message
    assert outcome.retryable
    assert len(wait_for(service, MAX_QUEUED)) == MAX_QUEUED


def test_a_full_queue_is_not_full_for_another_tenant(service):
    for ticket in range(MAX_QUEUED):
        service.submit(ticket, Constraint(kind="regex", source=f"a{ticket}"), "loud")
    service.submit(1000, Constraint(kind="regex", source="b"), "quiet")
    [outcome] = service.receive()
    assert (outcome.ticket, outcome.retryable) == (MAX_QUEUED - 1, True)
    service.submit(1001, Constraint(kind="regex", source="c"), "loud")
    [outcome] = service.receive()
    assert (outcome.ticket, outcome.retryable) == (1001, True)
    order = [outcome.ticket for outcome in wait_for(service, MAX_QUEUED)]
    assert order.index(1000) <= 2, "it waits for what runs, not for the row"
    assert service.num_waiting == 0


def test_what_a_tenant_has_compiled_is_neither_found_nor_named_the_same_for_another(service):
    constraint = Constraint(kind="regex", source="ab+")
    service.submit(1, constraint, "a")
    service.submit(2, constraint, "b")
    assert service.num_waiting == 2
    first, second = sorted(wait_for(service, 2), key=lambda outcome: outcome.ticket)
    assert first.payload == second.payload
    assert first.key != second.key
    pid = service.worker_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        service.submit(3, constraint, "c")
        service.submit(4, constraint, "b")
        assert service.receive() == [Compiled(4, second.key, second.payload)]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [outcome.ticket for outcome in wait_for(service, 1)] == [3]


def test_a_failure_is_the_tenants_own(service):
    bad = Constraint(kind="ebnf", source="root ::= missing")
    service.submit(1, bad, "a")
    [failed] = wait_for(service, 1)
    pid = service.worker_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        service.submit(2, bad, "b")
        service.submit(3, bad, "a")
        assert service.receive() == [CompileFailed(3, failed.message)]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [outcome.ticket for outcome in wait_for(service, 1)] == [2]


def test_a_worker_that_can_not_start_is_an_error_and_no_loop(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    service = GrammarService(VOCABULARY, [EOS])
    try:
        service.submit(1, Constraint(kind="regex", source="ab"), "t")
        [outcome] = wait_for(service, 1)
        assert isinstance(outcome, CompileFailed)
        assert "can't be started" in outcome.message
        assert outcome.retryable
        assert service.worker_pid is None
        service.submit(2, Constraint(kind="regex", source="ab"), "t")
        assert service.receive() == []
        monkeypatch.undo()
        service.tick(time.monotonic() + 60.0)
        assert isinstance(wait_for(service, 1)[0], Compiled)
    finally:
        service.close()


def test_worker_and_keeper_die_with_their_parent_also_amid_a_job():
    program = (
        "import sys, time\n"
        "from radixserve_tokenizer.grammar.service import GrammarService\n"
        "from radixserve_tokenizer.protocol import Constraint\n"
        "if __name__ == '__main__':\n"
        "    service = GrammarService([bytes([b]) for b in range(256)] + [b''], [256], timeout_s=600.0)\n"
        "    service.submit(1, Constraint(kind='regex', source='ab'), 't')\n"
        "    while not service.receive():\n"
        "        service.tick()\n"
        "        time.sleep(0.02)\n"
        "    service.submit(2, Constraint(kind='ebnf', source=sys.argv[1]), 't')\n"
        "    print(service.worker_pid, service.keeper_pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, SLOW.source], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert all(gone(pid) for pid in pids)


def test_close_leaves_nothing_behind():
    service = GrammarService(VOCABULARY, [EOS])
    service.submit(1, Constraint(kind="regex", source="ab"), "t")
    wait_for(service, 1)
    pids = service.worker_pid, service.keeper_pid
    service.submit(2, SLOW, "t")
    service.close()
    assert all(gone(pid) for pid in pids)


def test_close_does_not_wait_for_a_start():
    service = GrammarService(VOCABULARY, [EOS])
    pid = service.keeper_pid
    service.close()
    assert gone(pid)


def test_the_room_is_bounded():
    room = SharedRoom[bytes](10)
    room.put("t", "a", b"1", 4)
    room.put("t", "b", b"2", 4)
    assert room.get("t", "a") == b"1"
    room.put("t", "c", b"3", 4)
    assert [room.get("t", key) is not None for key in "abc"] == [True, False, True]
    room.put("t", "a", b"4", 1)
    assert (room.get("t", "a"), room.size) == (b"4", 5)
    room.put("t", "huge", b"5", 11)
    assert room.get("t", "huge") is None
    room.put("t", "a", b"6", 11)
    assert (room.get("t", "a"), room.size) == (None, 4)


def test_one_tenant_finds_and_evicts_nothing_of_another():
    room = SharedRoom[int](10)
    for key in range(5):
        room.put("quiet", f"{key}", key, 1)
    for key in range(100):
        room.put("loud", f"{key}", key, 1)
    assert [room.get("quiet", f"{key}") for key in range(5)] == [0, 1, 2, 3, 4]
    assert [key for key in range(100) if room.get("loud", f"{key}") is not None] == [95, 96, 97, 98, 99]
    assert room.get("third", "99") is None
    room.put("quiet", "5", 5, 1)  # more than its share, so at its own cost
    assert room.get("loud", "95") is not None
    assert room.get("quiet", "0") is None
    assert room.size == 10


def test_failures_are_forgotten_after_a_while():
    cache = FailureCache(max_entries=2, ttl_s=10.0)
    cache.put("t", "a", "bad", now=0.0)
    assert cache.get("t", "a", now=9.9) == "bad"
    assert cache.get("t", "a", now=10.0) is None
    assert cache.get("other", "a", now=0.0) is None
    cache.put("t", "b", "bad", now=0.0)
    cache.put("t", "c", "bad", now=0.0)
    assert cache.get("t", "a", now=1.0) is None


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_frames_survive_any_cutting(step):
    messages = [Start(vocabulary=(b"a", b""), eos_token_ids=(1,), memory_mb=5), Compile(job=1, kind="ebnf", source="x" * 50)]
    stream = b"".join(frame(message) for message in messages)
    reader = FrameReader()
    bodies = [body for start in range(0, len(stream), step) for body in reader.feed(stream[start : start + step])]
    assert [decode_to_worker(body) for body in bodies] == messages


def test_bad_frames_are_named():
    with pytest.raises(FrameError):
        list(FrameReader().feed(b"\xff\xff\xff\xff"))
    with pytest.raises(FrameError):
        decode_to_worker(b"\x81")


def test_a_grammar_whose_masks_take_long_is_refused():
    """Of a vocabulary of words: in the state behind `[^"]` nearly all of them."""
    words = [
        f"{first}{second}{third}".encode() for first, second, third in itertools.product(string.ascii_letters[:30], repeat=3)
    ]
    compiler = Compiler([*VOCABULARY, *words], [EOS])
    for source in ('root ::= "a" [^"]{1,100}', 'root ::= [a-zA-Z]{1,40} "x"'):
        with pytest.raises(CompileError, match="masks of this grammar would take too long"):
            compiler.compile("ebnf", source)
        composite = {"text": 'root ::= "x" part0', "parts": [{"label": "it", "kind": "ebnf", "source": source}]}
        with pytest.raises(CompileError, match="masks of this grammar would take too long"):
            compiler.compile("composite", json.dumps(composite, separators=(",", ":")))
    for source in ('root ::= "a" [^"]*', 'root ::= word (" " word)*\nword ::= [a-zA-Z]+ | [0-9]{1,9}'):
        compiler.compile("ebnf", source)
