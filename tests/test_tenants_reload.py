"""A tenants file that changes while the engine runs."""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

import msgspec
import pytest
from click.testing import CliRunner, Result

from radixserve.cli import main
from radixserve.config import ServeConfig
from radixserve.launcher.child import Child
from radixserve.launcher.reload import TenantsWatch, write_update
from radixserve.launcher.supervisor import Supervisor
from radixserve.tenants import TenantsFile, load_tenants
from radixserve_runtime.config import RuntimeConfig
from radixserve_tokenizer.config import TenantConfig, TokenizerConfig

if TYPE_CHECKING:
    from pathlib import Path

A, B = '[[tenant]]\nname = "a"\n', '[[tenant]]\nname = "b"\nweight = 2\n'


class Watched:
    """A file, and a clock that goes on by itself."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tenants.toml"
        self._time_ns = 10**18
        self.write(A)
        self.known = load_tenants(self.path)
        self.watch = TenantsWatch(self.path)
        self.now = 0.0

    def write(self, text: str) -> None:
        self._time_ns += 10**9
        self.path.write_text(text)
        os.utime(self.path, ns=(self._time_ns, self._time_ns))

    def poll(self) -> TenantsFile | None:
        self.now += 1.0
        found = self.watch.poll(self.now, self.known)
        self.known = found or self.known
        return found


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def names(found: TenantsFile | None) -> list[str] | None:
    return None if found is None else [one.name for one in found.tenants]


def test_a_change_is_taken_over_when_it_has_come_to_rest(watched: Watched) -> None:
    assert watched.poll() is None
    watched.write("")
    assert watched.poll() is None
    watched.write(A + B)
    assert watched.poll() is None
    assert names(watched.poll()) == ["a", "b"]
    assert watched.poll() is None


def test_a_broken_file_is_told_once_and_left(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.write(A + "weight = -1\n")
    with caplog.at_level(logging.ERROR):
        assert [watched.poll() for _ in range(5)] == [None] * 5
    assert len(caplog.records) == 1
    assert "stay as they were" in caplog.text
    assert "weight must be" in caplog.text
    watched.path.unlink()
    assert watched.poll() is None
    watched.write(A + B)
    watched.poll()
    assert names(watched.poll()) == ["a", "b"]


def test_who_asks_has_it_read_at_once(watched: Watched) -> None:
    watched.write(B)
    watched.watch.look_again()
    assert names(watched.poll()) == ["b"]
    watched.watch.look_again()
    assert watched.poll() is None, "nothing has changed"


def test_what_waits_for_the_next_start_is_told(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.write(A + "max_share = 0.5\n" + '[[public_prefix]]\ntext = "x"\n')
    watched.poll()
    found = watched.poll()
    assert found is not None
    assert not found.public_prefixes
    assert found.tenants[0].max_share == 0.5
    assert "public prefixes" in caplog.text
    assert "shares of the KV pool" in caplog.text


def test_it_is_handed_on_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    tenants = (TenantConfig(name="a", curve_keys=("k" * 40,)),)
    for _ in range(2):
        write_update(tmp_path / "tenants.json", TenantsFile(tenants))
    [file] = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert msgspec.json.decode(file.read_bytes(), type=tuple[TenantConfig, ...]) == tenants


def test_a_process_that_is_restarted_has_the_new_tenants(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(A)
    supervisor = Supervisor(ServeConfig(tenants=str(path), usage_db=":memory:"))
    try:
        supervisor._children = [Child(name, "none", b"", {}) for name in ("runtime", "tokenizer")]
        path.write_text(A + B)
        supervisor.reload_tenants()
        supervisor._take_over_tenants()
        assert supervisor.num_tenants == 2
        runtime, tokenizer = (child._config for child in supervisor._children)
        weights = {one.name: one.weight for one in msgspec.json.decode(runtime, type=RuntimeConfig).tenants}
        assert weights == {"a": 1.0, "b": 2.0}
        settings = msgspec.json.decode(tokenizer, type=TokenizerConfig)
        assert [one.name for one in settings.tenants] == ["a", "b"]
        with open(settings.tenants_update, "rb") as file:
            assert msgspec.json.decode(file.read(), type=tuple[TenantConfig, ...]) == settings.tenants
    finally:
        supervisor.stop()


def test_the_command_checks_the_file_and_touches_it(watched: Watched) -> None:
    def reload() -> Result:
        return CliRunner().invoke(main, ["tenant", "reload", "--file", str(watched.path)])

    before = watched.path.stat().st_mtime_ns
    result = reload()
    assert result.exit_code == 0
    assert "1 tenants" in result.output
    assert watched.path.stat().st_mtime_ns != before
    watched.write(A + "weight = 0\n")
    result = reload()
    assert result.exit_code == 1
    assert "weight must be" in result.output
    watched.path.unlink()
    assert "No such file" in reload().output
