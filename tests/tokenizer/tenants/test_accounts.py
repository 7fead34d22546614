"""Accounts: sums, their file, and what can happen to it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from radixserve_runtime.protocol import Usage
from radixserve_tokenizer.tenants.accounts import MAX_NAMED, Accounts
from radixserve_tokenizer.tenants.store import AccountFileError

if TYPE_CHECKING:
    from pathlib import Path

USAGE = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=3, queued_s=0.5, kv_token_s=2.5)


def test_sums() -> None:
    accounts = Accounts(None)
    account = accounts.of("a")
    account.admitted(1.0)
    account.used(USAGE, 0.25, 1.0)
    account.used(USAGE, 0.0, 2.0)
    account.refused(2.0)
    account.leased(40.0, 3.0)
    assert accounts.describe("a")["a"] == {
        "requests": 1,
        "refused": 1,
        "input_tokens": 20,
        "cached_tokens": 8,
        "output_tokens": 6,
        "kv_token_s": 45.0,
        "queue_s": 1.25,
    }


def test_the_named_are_few_and_the_sum_is_whole() -> None:
    accounts = Accounts(None)
    for number in range(3 * MAX_NAMED):
        accounts.of(f"t{number}").admitted(float(number))
    accounts.of("t0").admitted(1000.0)
    named, rest = accounts.most_recent()
    assert len(named) == MAX_NAMED
    assert "t0" in named
    assert "t1" not in named
    assert sum(totals.requests for totals in named.values()) + rest.requests == 3 * MAX_NAMED + 1


def test_a_file_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "new" / "usage.db"
    first = Accounts(path)
    first.of("a").used(USAGE, 0.0, 1.0)
    first.of("").admitted(1.0)
    first.close()
    second = Accounts(path)
    assert second.describe("a")["a"]["input_tokens"] == 10
    assert second.describe()[""]["requests"] == 1
    second.of("a").used(USAGE, 0.0, 1.0)
    second.tick(1.0)
    second.close()
    third = Accounts(path)
    assert third.describe("a")["a"] | {"queue_s": 0} == first.describe("a")["a"] | {
        "input_tokens": 20, "cached_tokens": 8, "output_tokens": 6, "kv_token_s": 5.0, "queue_s": 0
    }  # fmt: skip
    third.close()


KILLED = """
import sys, time
from pathlib import Path
from radixserve_tokenizer.tenants.accounts import Accounts
accounts, count = Accounts(Path(sys.argv[1])), 0
while True:
    count += 1
    accounts.of("a").admitted(float(count))
    accounts.tick(float(count))
    print(count, flush=True)
    time.sleep(0.01)
"""


def test_kill_loses_at_most_what_was_not_handed_over(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(30)]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    accounts = Accounts(path)
    kept = accounts.describe("a")["a"]["requests"]
    accounts.close()
    assert int(lines[-1]) - 20 <= kept <= int(lines[-1]) + 20


@pytest.mark.parametrize("content", [b"this is not a database, and never was one" * 100, b""])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "usage.db"
    path.write_bytes(content)
    accounts = Accounts(path)
    accounts.of("a").admitted(1.0)
    accounts.close()
    aside = list(tmp_path.glob("usage.db.damaged-*"))
    assert [file.read_bytes() for file in aside] == [content] * bool(content)
    assert ("damaged" in caplog.text) == bool(content)
    again = Accounts(path)
    assert again.describe("a")["a"]["requests"] == 1
    again.close()


def test_a_file_with_a_damaged_page_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    accounts = Accounts(path)
    for number in range(500):
        accounts.of(f"tenant-{number}").admitted(1.0)
    accounts.close()
    raw = bytearray(path.read_bytes())
    raw[5000:9000] = b"\xff" * 4000
    path.write_bytes(raw)
    fresh = Accounts(path)
    assert fresh.describe() == {}
    fresh.close()
    assert list(tmp_path.glob("usage.db.damaged-*"))


def test_a_place_that_cant_be_used_is_an_error_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "usage.db", tmp_path / "folder"):
        with pytest.raises(AccountFileError):
            Accounts(path)


def test_a_newer_form_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.commit()
    connection.close()
    with pytest.raises(AccountFileError, match="update it"):
        Accounts(path)


def test_when_it_cant_be_written_the_process_lives_and_tries_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "usage.db"
    accounts = Accounts(path)
    saboteur = sqlite3.connect(path)
    saboteur.execute("ALTER TABLE account RENAME TO elsewhere")
    saboteur.commit()
    accounts.of("a").admitted(1.0)
    accounts.tick(1.0)
    deadline = time.monotonic() + 30
    while "can't be written" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    saboteur.execute("ALTER TABLE elsewhere RENAME TO account")
    saboteur.commit()
    saboteur.close()
    accounts.close()
    again = Accounts(path)
    assert again.describe("a")["a"]["requests"] == 1
    again.close()
