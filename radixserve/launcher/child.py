"""One child process: started with its settings on standard input, ended politely and then not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Child:
    """A Python module run as a process in a session of its own (the terminal's Ctrl-C is ours to pass on).

    The child asks the kernel to be killed when the *thread* that started it ends, so start it from one that lives as
    long as the engine.
    """

    def __init__(self, name: str, module: str, config_json: bytes, environment: Mapping[str, str]) -> None:
        self.name = name
        self._module = module
        self._config = config_json
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0

    def configure(self, config_json: bytes) -> None:
        """Other settings, from its next start on."""
        self._config = config_json

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start (again)."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            env={**os.environ, **self._environment},
            start_new_session=True,
        )
        self.started_s = time.monotonic()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(self._config)
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it died at once; whoever watches it sees the return code

    def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL to its whole session after `grace_s`."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
        # Grandchildren (the grammar compiler) share the session and must not outlive it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
