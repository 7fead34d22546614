"""One engine an accounts file: two would each write their own sums over the other's."""

from __future__ import annotations

import fcntl
import os

from radixserve.config import ConfigError


class AccountsLock:
    """Holds `PATH.lock` until released. The kernel releases it when the process ends, however it ends."""

    def __init__(self, path: str) -> None:
        """Raises `ConfigError` when another engine has it, or the file can't be made. An empty path locks nothing."""
        self._handle: int | None = None
        if not path:
            return
        try:
            self._handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ConfigError(f"another engine keeps its accounts in {path}; choose another file with usage_db") from None
        except OSError as error:
            self.release()
            raise ConfigError(f"can't keep accounts in {path}: {error.strerror or error}; choose a file with usage_db") from error

    def release(self) -> None:
        """Let others have it. Safe to call twice."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
