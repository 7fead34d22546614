"""CURVE keys: how they are given, and what a wrong one says."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
import zmq
import zmq.auth

import radixserve_lang as rs
from radixserve_lang.keys import curve_keys
from tests.lang.fake_server import FakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TCP = "tcp://127.0.0.1:1"


@pytest.fixture(scope="module")
def pair() -> tuple[bytes, bytes]:
    return zmq.curve_keypair()


@pytest.fixture
def tcp_server(pair: tuple[bytes, bytes]) -> Iterator[FakeServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = FakeServer(f"tcp://127.0.0.1:{port}", curve_secret=pair[1])
    yield running
    running.stop()


@pytest.fixture
def client_file(tmp_path: Path) -> Path:
    _, secret = zmq.auth.create_certificates(tmp_path, "me")
    return tmp_path / secret.rsplit("/", 1)[-1]


def test_local_sockets_need_none() -> None:
    assert curve_keys("ipc:///x", "", "") is None


def test_both_forms_of_a_key_file(tmp_path: Path, client_file: Path, pair: tuple[bytes, bytes]) -> None:
    public, secret = zmq.curve_keypair()
    toml = tmp_path / "keys.toml"
    toml.write_text(f"# mine\npublic_key = '{public.decode()}'\nsecret_key = '{secret.decode()}' # keep it\n")
    keys = curve_keys(TCP, pair[0].decode(), toml)
    assert keys is not None
    assert (keys.server, keys.public, keys.secret) == (pair[0], public, secret)
    assert secret.decode() not in repr(keys)
    of_libzmq = curve_keys(TCP, pair[0].decode(), client_file)
    assert of_libzmq is not None
    assert of_libzmq.public == zmq.curve_public(of_libzmq.secret)
    server_file = tmp_path / "server.key"
    server_file.write_text(f'metadata\ncurve\n    public-key = "{pair[0].decode()}"\n')
    of_file = curve_keys(TCP, str(server_file), client_file)
    assert of_file is not None
    assert of_file.server == pair[0]


def test_what_is_missing_or_wrong_is_named(tmp_path: Path, client_file: Path, pair: tuple[bytes, bytes]) -> None:
    server = pair[0].decode()
    public_only = tmp_path / "public"
    public_only.write_text(f'public-key = "{server}"')
    mixed = tmp_path / "mixed"
    mixed.write_text(f'public-key = "{server}"\nsecret-key = "{zmq.curve_keypair()[1].decode()}"')
    short = tmp_path / "short"
    short.write_text('secret-key = "abc"')
    cases = [
        ("", client_file, "server_key="),
        (server, "", "client_keys="),
        ("nonsense", client_file, "neither a key of 40 characters nor a file"),
        (server, tmp_path / "none", "can't be read"),
        (server, public_only, "has no secret key"),
        (server, mixed, "does not belong"),
        (server, short, "no key of 40 characters"),
    ]
    for server_key, keys, message in cases:
        with pytest.raises(rs.ConnectionFailedError, match=message):
            rs.connect(TCP, server_key=server_key, client_keys=keys)


def test_tcp_with_keys(
    tcp_server: FakeServer, client_file: Path, pair: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with rs.connect(tcp_server.url, server_key=pair[0].decode(), client_keys=client_file) as remote:
        assert remote.model.name == "fake"
    monkeypatch.setenv("RADIXSERVE_URL", tcp_server.url)
    monkeypatch.setenv("RADIXSERVE_SERVER_KEY", pair[0].decode())
    monkeypatch.setenv("RADIXSERVE_CLIENT_KEYS", str(client_file))
    with rs.connect() as remote:
        assert remote.model.name == "fake"


def test_another_servers_key_gets_no_answer(tcp_server: FakeServer, client_file: Path) -> None:
    other = zmq.curve_keypair()[0].decode()
    with pytest.raises(rs.ConnectionFailedError, match="server_key its public key"):
        rs.connect(tcp_server.url, server_key=other, client_keys=client_file, timeout_s=0.5)
