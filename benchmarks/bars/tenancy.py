"""An engine of the real model with tenants, for the studies of fairness and priority."""

from __future__ import annotations

import hashlib
import random
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import radixserve as rs
from benchmarks.load import WORDS, Call
from radixserve_tokenizer.protocol import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve_tokenizer.protocol import Priority


@contextmanager
def engine_with(tenants: dict[str, float], **settings: Any) -> Iterator[rs.Engine]:
    """An engine whose tenants have these weights; a tenant's key is "key-" and its name."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tenants.toml"
        file.write_text(
            "".join(
                f'[[tenant]]\nname = "{name}"\nkey_hashes = ["{hashlib.sha256(key(name).encode()).hexdigest()}"]\nweight = {weight}\n'
                f"admin = {'true' if name == 'operator' else 'false'}\n"
                for name, weight in {"operator": 1.0, **tenants}.items()
            )
        )
        options: dict[str, Any] = {"log_level": "error", "usage_db": ":memory:"} | settings
        with rs.Engine(tenants=str(file), api_key=key("operator"), **options) as engine:
            yield engine


def key(name: str) -> str:
    """The API key of a tenant of `engine_with`."""
    return f"key-{name}"


def call(tenant: str, seed: int, num_words: int, num_output: int, priority: Priority = "standard") -> Call:
    """One chat of a tenant; no two share more than the template's first tokens."""
    rng = random.Random(f"{tenant}-{seed}")
    text = " ".join(rng.choice(WORDS) for _ in range(num_words))
    return Call(
        [("user", f"{seed} {text}")],
        Sampling(max_tokens=num_output, temperature=0.0, ignore_eos=True),
        api_key=key(tenant),
        priority=priority,
    )
