"""Tenants for tests, and short ways to ask as one of them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.config import TenantConfig
from tests.tokenizer.programs.harness import World, append, config, gen

if TYPE_CHECKING:
    from collections.abc import Sequence


def tenant(name: str, **limits: Any) -> TenantConfig:
    """Its key is `key of NAME`."""
    return TenantConfig(name=name, key_hashes=(hashlib.sha256(key(name).encode()).hexdigest(),), **limits)


def key(name: str) -> str:
    return f"key of {name}"


def world(*tenants: TenantConfig, hold: bool = True, **settings: Any) -> World:
    """A world of these tenants, whose runtime answers when it is told to."""
    made = World(settings=config(tenants=tenants, **settings))
    made.runtime.hold = hold
    return made


def ask(program: int, name: str, text: str = "a", *, max_tokens: int | None = 5, **opening: Any) -> Sequence[wire.FromClient]:
    """A program of one generation, as the HTTP server sends it."""
    return [
        wire.Open(program=program, api_key=key(name), **opening),
        append(0, text, program=program),
        gen(1, program=program, max_tokens=max_tokens),
    ]


def answer_all(it: World) -> None:
    """Let the runtime answer what it has, and what comes after that."""
    while it.runtime.requests:
        it.runtime.answer_all()
        it.settle()


def reply(it: World, kind: Any, **body: Any) -> wire.Reply:
    it.send(wire.Query(id=len(it.of(wire.Reply)), kind=kind, body=body))
    return it.of(wire.Reply)[-1]
