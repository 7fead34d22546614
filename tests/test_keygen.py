"""Key pairs for tcp://: made, shown, let in as a tenant, and refused where they would not be safe."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.auth
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from radixserve.cli import main
from radixserve.config import ConfigError, ServeConfig, load_config
from radixserve.keys import KeyFileError, KeyPair, new_pair, read_pair, write_pair
from radixserve.launcher.settings import Sockets, tokenizer_settings
from radixserve.tenants.edit import add_curve_key
from radixserve.tenants.file import TenantsFile, TenantsFileError, load_tenants, parse_tenants

LISTEN = "tcp://127.0.0.1:7070"


def keygen(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["keygen", *arguments])


def test_a_pair_is_written_for_its_owner_alone_and_zeromq_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "server.keys"
    result = keygen(str(file))
    assert result.exit_code == 0
    pair = read_pair(file)
    assert result.stdout == pair.public + "\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert zmq.auth.load_certificate(file) == (pair.public.encode(), pair.secret.encode())
    assert zmq.curve_public(pair.secret.encode()).decode() == pair.public
    assert pair.secret not in result.output
    assert pair.secret not in repr(pair)
    assert keygen(str(file), "--show").stdout == pair.public + "\n"


def test_a_file_that_is_there_is_kept_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "server.keys"
    first = keygen(str(file)).stdout
    again = keygen(str(file))
    assert again.exit_code == 1
    assert "--force replaces it" in again.output
    assert keygen(str(file), "--show").stdout == first
    assert keygen(str(file), "--force").stdout != first
    assert [path.name for path in tmp_path.iterdir()] == ["server.keys"]


def test_certificates_of_zeromq_are_read(tmp_path: Path) -> None:
    _, secret = zmq.auth.create_certificates(tmp_path, "client")
    Path(secret).chmod(0o600)
    public, secret_key = zmq.auth.load_certificate(secret)
    assert read_pair(Path(secret)) == KeyPair(public.decode(), (secret_key or b"").decode())


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (None, 0, "No such file"),
        ('secret-key = "short"', 0o600, "holds no secret key"),
        (f'public-key = "{"a" * 40}"', 0o600, "holds no secret key"),
        (f'secret-key = "{"~" * 40}"', 0o600, "is no CURVE key"),
        (f'secret-key = "{"a" * 40}"', 0o640, "chmod 600"),
    ],
)
def test_files_that_can_not_be_used(tmp_path: Path, text: str | None, mode: int, words: str) -> None:
    file = tmp_path / "x.keys"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(KeyFileError, match=words):
        read_pair(file)
    assert keygen(str(file), "--show").exit_code == 1


def test_a_tenants_key_is_let_in(tmp_path: Path) -> None:
    tenants, keys = tmp_path / "tenants.toml", tmp_path / "search.keys"
    tenants.write_text('# ours\n[[tenant]]\nname = "search"  # first\nweight = 2\n\n[[tenant]]\nname = "chat"\n')
    first = keygen(str(keys), "--tenant", "search", "--file", str(tenants))
    assert first.exit_code == 0, first.output
    second = keygen(str(tmp_path / "other.keys"), "--tenant", "search", "--file", str(tenants))
    public = [result.stdout.strip() for result in (second, first)]
    assert load_tenants(tenants).tenants[0].curve_keys == tuple(public)
    assert read_pair(keys).public == public[1]
    assert "# first" in tenants.read_text()
    unknown = keygen(str(tmp_path / "no.keys"), "--tenant", "nobody", "--file", str(tenants))
    assert unknown.exit_code == 1
    assert "there is no tenant 'nobody'" in unknown.output
    assert not (tmp_path / "no.keys").exists()
    listed = CliRunner().invoke(main, ["tenant", "list", "--file", str(tenants)]).output
    assert f"curve:{public[0][:8]}" in listed


@given(st.lists(st.integers(0, 1), min_size=1, max_size=4))
def test_keys_with_any_characters_can_be_written(who: list[int]) -> None:
    text = '[[tenant]]\nname = "a"\n[[tenant]]\nname = "b"\ncurve_keys = [ # none yet\n]\n'
    expected: dict[str, list[str]] = {"a": [], "b": []}
    for index in who:
        name, key = "ab"[index], new_pair().public
        text = add_curve_key(text, name, key)
        expected[name].insert(0, key)
    parsed = parse_tenants(text, Path("tenants.toml"))
    assert {one.name: list(one.curve_keys) for one in parsed.tenants} == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('curve_keys = "x"', "must be a list of public CURVE keys"),
        ('curve_keys = ["x"]', "number 1 is not a public CURVE key"),
        (f'curve_keys = ["{"a" * 40}", "{"a" * 40}"]', "the same key twice"),
        (f"curve_keys = [{', '.join(f'{n:040}'.join(chr(34) * 2) for n in range(65))}]", "at most 64"),
    ],
)
def test_keys_that_are_none_are_refused(line: str, words: str) -> None:
    with pytest.raises(TenantsFileError, match=words):
        parse_tenants(f'[[tenant]]\nname = "a"\n{line}\n', Path("tenants.toml"))


def test_a_key_is_one_tenants() -> None:
    tables = "".join(f'[[tenant]]\nname = "{name}"\ncurve_keys = ["{"k" * 40}"]\n' for name in "ab")
    with pytest.raises(TenantsFileError, match="is a key of tenant 'a' already"):
        parse_tenants(tables, Path("tenants.toml"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listen": LISTEN, "server_keys": "k"}, "give a tenants file"),
        ({"listen": LISTEN, "tenants": "t"}, "radixserve keygen"),
        ({"server_keys": "k"}, "give listen too"),
        *(
            ({"listen": address, "tenants": "t", "server_keys": "k"}, "listen must be tcp://HOST:PORT")
            for address in ("127.0.0.1:7070", "ipc:///x", "tcp://:7070", "tcp://h", "tcp://h:0", "tcp://h:70000", "tcp://h:x")
        ),
    ],
)
def test_what_can_not_be_listened_on_is_refused_at_the_start(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServeConfig(**settings)


def test_the_tokenizer_process_gets_the_secret_key(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text(f'listen = "{LISTEN}"\ntenants = "t.toml"\nserver-keys = "server.keys"\n')
    config = load_config(tmp_path / "serve.toml", {})
    sockets = Sockets(clients="ipc://c", runtime="ipc://r")
    with pytest.raises(KeyFileError, match="radixserve keygen"):
        tokenizer_settings(config, TenantsFile(), "/m", "m", sockets)
    pair = new_pair()
    write_pair(tmp_path / "server.keys", pair)
    made = tokenizer_settings(config, TenantsFile(), "/m", "m", sockets)
    assert (made.listen, made.curve_secret_key) == (LISTEN, pair.secret)
