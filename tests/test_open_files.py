"""The limit of open files follows the connections that are wanted."""

from __future__ import annotations

import resource

import pytest

from radixserve.open_files import allow_connections

INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "wanted", "allowed", "soft"),
    [
        ((20_000, 20_000), 4096, 4096, 20_000),
        ((INFINITE, INFINITE), 4096, 4096, INFINITE),
        ((1024, 1 << 20), 4096, 4096, 4096 + 512),
        ((1024, INFINITE), 4096, 4096, 4096 + 512),
        ((1024, 2048), 4096, 2048 - 512, 2048),
        ((256, 256), 4096, 128, 256),
    ],
)
def test_as_many_as_there_may_be(monkeypatch, caplog, limits, wanted, allowed, soft):
    now = list(limits)
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: now.__setitem__(slice(None), new))
    assert allow_connections(wanted) == allowed
    assert now[0] == soft
    assert bool(caplog.records) == (allowed < wanted)


def test_a_system_that_does_not_let_it(monkeypatch, caplog):
    def no(_, __):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, INFINITE))
    monkeypatch.setattr(resource, "setrlimit", no)
    assert allow_connections(4096) == 512
    assert "at most 512 connections" in caplog.text
