"""Grammars in the runtime, over a vocabulary of single bytes and a few longer tokens."""

from __future__ import annotations

import pytest
import torch
import xgrammar

from radixserve_runtime.grammar.mask import allows_other_than, apply_masks
from radixserve_runtime.grammar.request import GrammarError
from radixserve_runtime.grammar.store import GrammarStore

EOS, CONTROL = 256, 257
VOCABULARY = [bytes([byte]) for byte in range(256)] + [b"", b"", b"ab", b"abc"]
VOCAB_SIZE = 320  # the LM head is padded


def payload(regex: str, vocabulary=VOCABULARY) -> bytes:
    info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=[EOS])
    return xgrammar.GrammarCompiler(info, max_threads=1).compile_regex(regex).serialize_json().encode()


def allowed(grammar, store) -> set[int]:
    row = store.new_mask_row().fill_(-1)
    grammar.fill(row)
    return {index for index in range(32 * len(row)) if (int(row[index // 32]) >> (index % 32)) & 1}


@pytest.fixture
def store() -> GrammarStore:
    return GrammarStore(VOCABULARY, VOCAB_SIZE, [EOS], capacity=2)


def test_a_grammar_from_start_to_end(store):
    assert not store.has("g")
    store.put("g", payload("ab+c?"))
    assert store.has("g")
    grammar = store.matcher("g")
    assert allowed(grammar, store) == {ord("a"), 258, 259}
    assert grammar.accept(ord("a"))
    assert allowed(grammar, store) == {ord("b")}
    assert not grammar.accept(ord("x"))
    assert not grammar.accept(EOS)
    assert not grammar.is_complete
    assert grammar.accept(ord("b"))
    assert allowed(grammar, store) == {ord("b"), ord("c"), EOS}
    assert grammar.is_complete
    assert not grammar.is_terminated
    assert grammar.accept(EOS)
    assert grammar.is_terminated


def test_control_tokens_padding_and_ids_outside_are_never_allowed(store):
    store.put("any", payload(r"[\s\S]*"))
    grammar = store.matcher("any")
    assert CONTROL not in allowed(grammar, store)
    assert max(allowed(grammar, store)) < len(VOCABULARY)
    for token_id in (CONTROL, len(VOCABULARY), VOCAB_SIZE - 1, VOCAB_SIZE, -1, 10**9):
        assert not grammar.accept(token_id)


def test_after_the_end_a_fill_is_a_named_error_and_rollback_helps(store):
    store.put("g", payload("a"))
    grammar = store.matcher("g")
    assert grammar.accept(ord("a"))
    assert grammar.accept(EOS)
    with pytest.raises(GrammarError, match="terminated"):
        grammar.fill(store.new_mask_row())
    grammar.rollback(1)
    assert not grammar.is_terminated
    assert allowed(grammar, store) == {EOS}
    grammar.rollback(1)
    assert allowed(grammar, store) == {ord("a")}
    grammar.rollback(0)
    with pytest.raises(GrammarError, match="take back"):
        grammar.rollback(1)


def test_requests_of_one_grammar_do_not_see_each_other(store):
    store.put("g", payload("(ab|ba)"))
    first, second = store.matcher("g"), store.matcher("g")
    assert first.accept(ord("a"))
    assert second.accept(ord("b"))
    assert allowed(first, store) == {ord("b")}
    assert allowed(second, store) == {ord("a")}


def test_the_least_recently_used_grammar_goes_and_running_requests_keep_theirs(store):
    store.put("a", payload("a"))
    store.put("b", payload("b"))
    running = store.matcher("b")
    store.matcher("a")
    store.put("c", payload("c"))
    assert [store.has(key) for key in "abc"] == [True, False, True]
    assert running.accept(ord("b"))
    with pytest.raises(GrammarError, match="payload"):
        store.matcher("b")


def test_a_tenants_flood_evicts_its_own_grammars():
    store = GrammarStore(VOCABULARY, VOCAB_SIZE, [EOS], capacity=4)
    for key in ("q1", "q2"):
        store.put(key, payload("a"), "quiet")
    for number in range(6):
        store.put(f"l{number}", payload("b"), "loud")
    assert [key for key in ("q1", "q2", *(f"l{number}" for number in range(6))) if store.has(key)] == ["q1", "q2", "l4", "l5"]
    store.put("l5", payload("c"), "loud")
    assert store.has("l4"), "the same key again takes no more room"


@pytest.mark.parametrize("broken", [b"", b"{", b"{}", b"null", b"\xff\xfe", b"[" * 10_000])
def test_a_broken_payload_is_a_named_error(store, broken):
    with pytest.raises(GrammarError, match="can't be read"):
        store.put("g", broken)
    assert not store.has("g")


def test_a_grammar_for_another_vocabulary_is_refused(store):
    with pytest.raises(GrammarError, match="can't be read"):
        store.put("g", payload("a", VOCABULARY[:-1]))


def test_a_grammar_may_come_as_its_text(store):
    store.put("g", b'root ::= "a" ("bc" | "b")\n')
    grammar = store.matcher("g")
    assert allowed(grammar, store) == {ord("a"), VOCABULARY.index(b"ab"), VOCABULARY.index(b"abc")}
    for token in b"ab":
        assert grammar.accept(token)
    assert grammar.is_complete


def test_a_control_token_with_a_stand_in_is_allowed_where_a_grammar_names_it_alone():
    vocabulary = [*VOCABULARY]
    vocabulary[CONTROL] = b"\xff257"
    store = GrammarStore(vocabulary, VOCAB_SIZE, [EOS])
    store.put("g", b'root ::= Token(257) "\\"" [^\\ud800-\\udfff"]* "\\""\n')
    grammar = store.matcher("g")
    assert allowed(grammar, store) == {CONTROL}
    assert grammar.accept(CONTROL)
    assert allowed(grammar, store) == {ord('"')}
    assert grammar.accept(ord('"'))
    assert CONTROL not in allowed(grammar, store)


def test_wrong_row(store):
    store.put("g", payload("a"))
    with pytest.raises(GrammarError, match="shape"):
        store.matcher("g").fill(torch.zeros(3, dtype=torch.int32))


def test_bad_arguments():
    with pytest.raises(ValueError, match="LM head"):
        GrammarStore(VOCABULARY, 10, [EOS])
    with pytest.raises(ValueError, match="capacity"):
        GrammarStore(VOCABULARY, VOCAB_SIZE, [EOS], capacity=0)


@pytest.mark.parametrize("vocab_size", [32, 33, 63, 64, 100, 1000])
def test_masks_against_a_loop(vocab_size):
    generator = torch.Generator().manual_seed(vocab_size)
    words = (vocab_size + 31) // 32
    masks = torch.randint(-(2**31), 2**31, (3, words), generator=generator).int()
    logits = torch.randn(5, vocab_size, generator=generator)
    wanted = logits.clone()
    for index, row in enumerate((4, 0, 3)):
        for token_id in range(vocab_size):
            if not (int(masks[index, token_id // 32]) >> (token_id % 32)) & 1:
                wanted[row, token_id] = float("-inf")
    apply_masks(logits, [4, 0, 3], masks)
    assert torch.equal(logits, wanted)


def test_masks_equal_xgrammars_own_kernel():
    masks = torch.randint(-(2**31), 2**31, (2, 10)).int()
    ours = torch.randn(2, 310)
    theirs = ours.clone()
    apply_masks(ours, [0, 1], masks)
    xgrammar.apply_token_bitmask_inplace(theirs, masks, backend="cpu")
    assert torch.equal(ours, theirs)


def test_allows_other_than():
    mask = torch.zeros(2, dtype=torch.int32)
    mask[0], mask[1] = 1 << 4, -(2**31)
    assert allows_other_than(mask, torch.tensor([4]))
    assert allows_other_than(mask, torch.tensor([63, 64, -1]))
    assert not allows_other_than(mask, torch.tensor([4, 63]))
