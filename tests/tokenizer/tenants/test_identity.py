"""Keys become tenants, and classes are kept to."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve_tokenizer.config import TenantConfig
from radixserve_tokenizer.tenants.accounts import Accounts
from radixserve_tokenizer.tenants.identity import CLASSES, Tenants, TenantSettingsError

if TYPE_CHECKING:
    from radixserve_tokenizer.protocol import Priority


def key_hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def tenants(*configs: TenantConfig) -> Tenants:
    return Tenants(configs, Accounts(None), 0.0)


def test_without_tenants_everybody_is_the_anonymous_one() -> None:
    everybody = tenants()
    for key in ("", "anything", "\ud800"):
        found = everybody.identify(key)
        assert found is not None
        assert (found.name, found.classes) == ("", CLASSES)


def test_a_key_is_one_tenants_and_any_other_nobodys() -> None:
    known = tenants(
        TenantConfig(name="a", key_hashes=(key_hash("k1"), key_hash("k2").upper())),
        TenantConfig(name="b", key_hashes=(key_hash("k3"),)),
        TenantConfig(name="keyless"),
    )
    owners = {key: found.name if (found := known.identify(key)) else None for key in ("k1", "k2", "k3", "k4", "", "a", "K1")}
    assert owners == {"k1": "a", "k2": "a", "k3": "b", "k4": None, "": None, "a": None, "K1": None}


def test_every_hash_is_compared_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    known = tenants(*(TenantConfig(name=f"t{n}", key_hashes=(key_hash(f"k{n}"),)) for n in range(5)))
    compared: list[bytes] = []
    real = hmac.compare_digest

    def counting(left: bytes, right: bytes) -> bool:
        compared.append(right)
        return real(left, right)

    monkeypatch.setattr("radixserve_tokenizer.tenants.identity.hmac.compare_digest", counting)
    for key in ("k0", "k4", "nobody's", ""):
        compared.clear()
        known.identify(key)
        assert len(compared) == 5


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([{"name": ""}], "needs a name"),
        ([{"name": "a"}, {"name": "a"}], "there twice"),
        ([{"name": "a", "classes": ()}], "one or more of"),
        ([{"name": "a", "classes": ("urgent",)}], "one or more of"),
        ([{"name": "a", "max_running": -1}], "0 \\(none\\) or more"),
        ([{"name": "a", "key_hashes": ("plain-key",)}], "64 hex digits"),
        ([{"name": "a", "key_hashes": (key_hash("k"),)}, {"name": "b", "key_hashes": (key_hash("k"),)}], "same key"),
    ],
)
def test_settings_that_make_no_sense_are_refused_without_showing_a_key(configs: list[dict[str, object]], message: str) -> None:
    with pytest.raises(TenantSettingsError, match=message) as caught:
        tenants(*(TenantConfig(**each) for each in configs))  # type: ignore[arg-type]
    assert "plain-key" not in str(caught.value)
    assert key_hash("k") not in str(caught.value)


@given(allowed=st.sets(st.sampled_from(CLASSES), min_size=1), asked=st.sampled_from(CLASSES))
def test_a_class_is_never_above_what_was_asked_unless_the_tenant_has_no_other(allowed: set[Priority], asked: Priority) -> None:
    found = tenants(TenantConfig(name="a", classes=tuple(allowed), key_hashes=(key_hash("k"),))).identify("k")
    assert found is not None
    got = found.class_for(asked)
    assert got in allowed
    if asked in allowed:
        assert got == asked
    below = [each for each in CLASSES[CLASSES.index(asked) :] if each in allowed]
    assert got == (below[0] if below else found.classes[-1])
