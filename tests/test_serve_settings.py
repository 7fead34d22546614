"""Settings on their way to the processes, and who may reach a server."""

from __future__ import annotations

import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.console import Console

from radixserve.bind import check_exposure, is_loopback
from radixserve.config import ConfigError, ServeConfig, load_config
from radixserve.engine import Engine
from radixserve.launcher.lock import AccountsLock
from radixserve.launcher.settings import Sockets, declared_tenants, runtime_settings, tokenizer_settings, usage_db
from radixserve.serve import http_settings, run
from radixserve.tenants import TenantsFileError
from radixserve_runtime.config import RuntimeConfig, TenantShare
from radixserve_tokenizer.config import TokenizerConfig

if TYPE_CHECKING:
    from collections.abc import Callable

SOCKETS = Sockets(clients="ipc://c", runtime="ipc://r")
TENANTS = """
[[tenant]]
name = "a"
weight = 2
reserved_share = 0.25
max_share = 0.75
max_queued = 3
[[public_prefix]]
text = "Be kind."
"""


@pytest.fixture
def tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    return path


def test_each_process_is_told_its_part(tenants: Path) -> None:
    config = ServeConfig(
        tenants=str(tenants), policy="vtc", ageing_s=3.0, quantum=64.0, level_unit=0.0, max_queued_tokens=77, usage_db=":memory:"
    )
    declared = declared_tenants(config)
    runtime = runtime_settings(config, declared, "/model", SOCKETS)
    assert runtime.tenants == (TenantShare(name="a", weight=2.0, reserved_share=0.25, max_share=0.75),)
    assert (runtime.policy, runtime.ageing_s, runtime.quantum, runtime.level_unit) == ("vtc", 3.0, 64.0, 0.0)
    assert runtime.socket == "ipc://r"
    tokenizer = tokenizer_settings(config, declared, "/model", "name", SOCKETS)
    assert (tokenizer.tenants[0].name, tokenizer.tenants[0].max_queued) == ("a", 3)
    assert [one.text for one in tokenizer.public_prefixes] == ["Be kind."]
    assert (tokenizer.max_queued_tokens, tokenizer.usage_db, tokenizer.socket) == (77, "", "ipc://c")
    # As the processes read it from their standard input.
    assert msgspec.json.decode(msgspec.json.encode(runtime), type=RuntimeConfig) == runtime
    assert msgspec.json.decode(msgspec.json.encode(tokenizer), type=TokenizerConfig) == tokenizer


def test_where_accounts_are_kept(tenants: Path, tmp_path: Path) -> None:
    assert usage_db(ServeConfig()) == ""
    assert usage_db(ServeConfig(tenants=str(tenants), usage_db=":memory:")) == ""
    chosen = tmp_path / "mine.db"
    assert usage_db(ServeConfig(usage_db=str(chosen))) == str(chosen)
    with pytest.raises(ConfigError, match="does not exist"):
        usage_db(ServeConfig(usage_db=str(tmp_path / "no" / "mine.db")))
    default = Path(usage_db(ServeConfig(tenants=str(tenants))))
    assert default.parent.parent == tmp_path / "data" / "radixserve"
    assert stat.S_IMODE(default.parent.stat().st_mode) == 0o700
    other = tmp_path / "other"
    other.mkdir()
    (other / "tenants.toml").write_text(TENANTS)
    assert Path(usage_db(ServeConfig(tenants=str(other / "tenants.toml")))) != default


def test_one_engine_an_accounts_file(tmp_path: Path) -> None:
    path = str(tmp_path / "use.db")
    first = AccountsLock(path)
    with pytest.raises(ConfigError, match=r"another engine.*use\.db"):
        AccountsLock(path)
    AccountsLock("").release()
    first.release()
    AccountsLock(path).release()
    with pytest.raises(ConfigError, match="can't keep accounts"):
        AccountsLock(str(tmp_path / "no" / "use.db"))


def test_a_file_gives_paths_relative_to_itself(tenants: Path, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('tenants = "tenants.toml"\nusage-db = "use.db"\n')
    config = load_config(file, {})
    assert (config.tenants, config.usage_db) == (str(tenants), str(tmp_path / "use.db"))
    assert load_config(file, {"tenants": "mine.toml"}).tenants == "mine.toml"
    file.write_text('tenants = "/abs.toml"\nusage-db = ":memory:"\n')
    assert (load_config(file, {}).tenants, load_config(file, {}).usage_db) == ("/abs.toml", ":memory:")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ServeConfig(ageing_s=0), "ageing_s"),
        (lambda: ServeConfig(quantum=0), "quantum"),
        (lambda: ServeConfig(quantum=float("inf")), "quantum"),
        (lambda: ServeConfig(level_unit=-1.0), "level_unit"),
        (lambda: ServeConfig(ageing_s=float("nan")), "ageing_s"),
        (lambda: ServeConfig(max_queued_tokens=-1), "max_queued_tokens"),
        (lambda: ServeConfig(allow_anonymous=True, tenants="x"), "allow_anonymous"),
        (lambda: load_config(None, {"policy": "best"}), "policy"),
        (lambda: Engine(allow_anonymous=True), "allow_anonymous"),
        (lambda: Engine(tenants=Path("/no/tenants.toml")), "/no/tenants.toml"),
    ],
)
def test_settings_that_can_not_be(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_an_engine_names_the_fault_of_its_tenants_file(tenants: Path) -> None:
    tenants.write_text(TENANTS + "weihgt = 1")
    with pytest.raises(TenantsFileError, match="unknown key 'weihgt'"):
        Engine(tenants=tenants)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.1.2.3", False),
        ("fe80::1", False),
        ("no such host.invalid", False),
    ],
)
def test_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_who_may_reach_a_server() -> None:
    check_exposure(ServeConfig())
    check_exposure(ServeConfig(host="0.0.0.0", tenants="tenants.toml"))
    check_exposure(ServeConfig(host="0.0.0.0", allow_anonymous=True))
    with pytest.raises(ConfigError, match=r"--tenants.*--allow-anonymous"):
        check_exposure(ServeConfig(host="0.0.0.0"))


def test_serving_everyone_is_refused_before_anything_starts() -> None:
    console = Console(record=True, width=400)
    assert run(ServeConfig(host="0.0.0.0", port=0, model="/no/such/model"), console) == 1
    text = console.export_text()
    assert "without tenants" in text
    assert "starting" not in text


def test_serving_with_a_broken_tenants_file_names_it(tenants: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its own handlers
    tenants.write_text("[[tenant]]\nname = 5")
    console = Console(record=True, width=400)
    assert run(ServeConfig(port=0, model="/no/such/model", tenants=str(tenants)), console) == 1
    assert f"{tenants}: tenant 1: name must be" in console.export_text()


def test_more_prompts_than_may_wait_are_a_mistake_of_the_request() -> None:
    assert http_settings(ServeConfig(max_queued=4), ("m",)).max_prompts == 4
    assert http_settings(ServeConfig(max_connections=7), ("m",)).max_connections == 7
    assert http_settings(ServeConfig(max_queued=10_000), ("m",)).max_prompts == http_settings(ServeConfig(), ("m",)).max_prompts
