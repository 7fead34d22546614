"""The file of accounts: SQLite, written by a thread of its own, so that a slow disk holds nobody up."""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from pathlib import Path
from typing import TypeAlias

logger = logging.getLogger(__name__)

Row: TypeAlias = tuple[str, tuple[float, ...]]
"""A tenant and its sums, in the order of the columns."""

_VERSION = 1
_BUSY_S = 5.0
_CLOSE_S = 10.0
_COMPLAIN_S = 60.0
_AGAIN_S = 1.0


class AccountFileError(ValueError):
    """The file can't be opened; the text says what to do."""


class AccountFile:
    """Sums by tenant. A file that is damaged is moved aside and a new one begun; one that can't be opened is an error at start.

    Later errors (a full disk) are logged and the rows written again with the next: the sums in memory are what counts.
    One process may write a file at a time: who starts this one sees to that.
    WAL with synchronous NORMAL: what was committed survives the death of the process.
    """

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        """Raises `AccountFileError`."""
        self._path = path
        self._columns = columns
        self._upsert = (
            f"INSERT INTO account (tenant, {', '.join(columns)}) VALUES ({', '.join('?' * (len(columns) + 1))}) "
            f"ON CONFLICT (tenant) DO UPDATE SET {', '.join(f'{each} = excluded.{each}' for each in columns)}"
        )
        self._rows = self._open()
        self._queue: queue.Queue[list[Row] | None] = queue.Queue(maxsize=1)
        self._complained_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="accounts", daemon=True)
        self._thread.start()

    def read(self) -> list[Row]:
        """What the file held when it was opened."""
        return self._rows

    def write(self, rows: list[Row]) -> bool:
        """Have these written soon; False if the writer is still busy with earlier ones, which never waits."""
        if not rows:
            return True
        try:
            self._queue.put_nowait(rows)
        except queue.Full:
            return False
        return True

    def close(self, rows: list[Row]) -> None:
        """Write these too, and end. Waits for the disk, within reason."""
        try:
            self._queue.put(rows, timeout=_CLOSE_S)
            self._queue.put(None, timeout=_CLOSE_S)
        except queue.Full:
            logger.error("the accounts could not be written to %s in time", self._path)
            return
        self._thread.join(_CLOSE_S)

    # ---- opening --------------------------------------------------------------------------------------------------

    def _open(self) -> list[Row]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return self._load()
        except sqlite3.OperationalError as error:
            raise AccountFileError(
                f"the accounts {self._path} can't be opened ({error}): name a file that can be written"
            ) from error
        except sqlite3.DatabaseError as error:
            damage = error
        except OSError as error:
            raise AccountFileError(f"the accounts {self._path} can't be kept there: {error.strerror}") from error
        try:
            self._move_aside(damage)
            return self._load()
        except (sqlite3.Error, OSError) as error:
            raise AccountFileError(f"the accounts {self._path} can't be begun anew: {error}") from error

    def _load(self) -> list[Row]:
        connection = self._connect()
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise AccountFileError(
                    f"the accounts {self._path} have form {version}, and this version reads {_VERSION}: update it"
                )
            state = connection.execute("PRAGMA quick_check").fetchone()[0]
            if state != "ok":
                raise sqlite3.DatabaseError(state)
            with connection:
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS account (tenant TEXT PRIMARY KEY, "
                    f"{', '.join(f'{each} NUMERIC NOT NULL' for each in self._columns)}) WITHOUT ROWID"
                )
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            rows = connection.execute(f"SELECT tenant, {', '.join(self._columns)} FROM account")
            return [(row[0], tuple(row[1:])) for row in rows]
        finally:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_S)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _move_aside(self, error: sqlite3.DatabaseError) -> None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        aside = self._path.with_name(f"{self._path.name}.damaged-{stamp}-{time.monotonic_ns()}")
        logger.error("the accounts %s are damaged (%s): moved to %s, and begun anew", self._path, error, aside.name)
        for ending in ("", "-wal", "-shm"):
            part = Path(f"{self._path}{ending}")
            if part.exists():
                part.rename(f"{aside}{ending}")

    # ---- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        unwritten: dict[str, tuple[float, ...]] = {}
        while True:
            try:
                rows = self._queue.get(timeout=_AGAIN_S if unwritten else None)
            except queue.Empty:
                rows = []
            unwritten.update(rows or ())
            try:
                connection = connection or self._connect()
                with connection:
                    connection.executemany(self._upsert, [(name, *values) for name, values in unwritten.items()])
                unwritten.clear()
            except Exception as error:  # whatever it is, this thread must go on: nobody would notice its end
                self._complain(error)
                if connection is not None:
                    connection.close()
                    connection = None
            if rows is None:
                if connection is not None:
                    connection.close()
                return

    def _complain(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._complained_at > _COMPLAIN_S:
            self._complained_at = now
            logger.error("the accounts can't be written to %s (%s); they are kept in memory and tried again", self._path, error)
