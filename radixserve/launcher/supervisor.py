"""The processes of one engine: a runtime and a tokenizer process, watched by one thread."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from radixserve.config import ConfigError
from radixserve.launcher.child import Child
from radixserve.launcher.lock import AccountsLock
from radixserve.launcher.reload import TenantsWatch, write_update
from radixserve.launcher.settings import Sockets, declared_tenants, runtime_settings, tokenizer_settings, usage_db
from radixserve.models import model_name, resolve
from radixserve_lang.errors import RadixServeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.config import ServeConfig

logger = logging.getLogger(__name__)

#: A process that can't use its settings (no such model, unsupported architecture) ends with this: trying again is no use.
EXIT_BAD_SETTINGS = 78
#: A life shorter than this is a fast death. So many in a row, by its own exit or by a signal, and starting again is no use.
_FAST_DEATH_S = 20.0
_MAX_FAST_EXITS = 3
_MAX_FAST_KILLS = 8
_MAX_BACKOFF_S = 4.0
#: The longest path that a Unix socket can have, less the name that we give it.
_MAX_FOLDER_CHARS = 90


class EngineStartError(RadixServeError):
    """A process can't serve, or ends again and again; what it printed is on standard error."""


class Supervisor:
    """Starts both processes and restarts one that dies; gives up on one that dies again and again at its start.

    The tenants file is read here, so that a process that is restarted knows the same tenants as the others. Raises
    `TenantsFileError` if it can't be used at the start; when it changes later to what can't be, the old tenants stay.
    """

    def __init__(self, config: ServeConfig, *, say: Callable[[str], None] | None = None) -> None:
        self._config = config
        self._tenants_watch = TenantsWatch(Path(config.tenants).expanduser()) if config.tenants else None
        self._declared = declared_tenants(config)
        self._model_path = ""
        self._say = say or (lambda text: None)
        self._folder = _socket_folder()
        self._children: list[Child] = []
        self._accounts_lock = AccountsLock("")
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="radixserve-supervisor", daemon=True)
        self._fast_deaths: dict[str, int] = {}
        self._grace_s = 3.0
        self.failed: str = ""
        """Why the engine can't run any more; empty while it can."""
        self.on_failed: Callable[[], object] = lambda: None
        """Called once, on the watching thread, when `failed` is set."""

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"ipc://{self._folder / 'clients.sock'}"

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {child.name: child.pid for child in self._children}

    @property
    def thread_id(self) -> int | None:
        """Native id of the thread that starts them."""
        return self._thread.native_id

    @property
    def num_tenants(self) -> int:
        """Tenants that the tenants file declares; 0 without one."""
        return len(self._declared.tenants)

    @property
    def names(self) -> tuple[str, ...]:
        """Names under which the model is served; the first is its own."""
        given = tuple(name.strip() for name in self._config.served_model_name.split(",") if name.strip())
        return given or (model_name(self._config.model),)

    def start(self) -> None:
        """Start the processes; they load side by side. Raises what `resolve` raises when there is no such model, and `ConfigError`."""
        self._model_path = str(resolve(self._config.model))
        self._accounts_lock = AccountsLock(usage_db(self._config))
        threads = self._config.threads
        runtime, tokenizer = self._settings()
        self._children = [
            Child("runtime", "radixserve_runtime", runtime, self._environment(threads)),
            Child("tokenizer", "radixserve_tokenizer", tokenizer, self._environment(1)),
        ]
        self._thread.start()
        self._started.wait()

    def check(self) -> None:
        """Raise `EngineStartError` if the engine can't run any more."""
        if self.failed:
            raise EngineStartError(self.failed)

    def stop(self, grace_s: float = 3.0) -> None:
        """End all processes. Safe to call twice."""
        self._grace_s = grace_s
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * grace_s + 5)
        self._accounts_lock.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    def reload_tenants(self) -> None:
        """Look at the tenants file soon, whether it seems to have changed or not; safe to call from a signal handler."""
        if self._tenants_watch is not None:
            self._tenants_watch.look_again()

    def _settings(self) -> tuple[bytes, bytes]:
        """Of the runtime and of the tokenizer process, as they are now."""
        runtime = runtime_settings(self._config, self._declared, self._model_path, self._sockets)
        tokenizer = tokenizer_settings(self._config, self._declared, self._model_path, self.names[0], self._sockets)
        return msgspec.json.encode(runtime), msgspec.json.encode(tokenizer)

    @property
    def _sockets(self) -> Sockets:
        return Sockets(
            clients=self.address, runtime=f"ipc://{self._folder / 'runtime.sock'}", tenants=str(self._folder / "tenants.json")
        )

    def _environment(self, threads: int) -> dict[str, str]:
        count = threads or len(os.sched_getaffinity(0))
        return {
            # Some milliseconds. Threads that meet at a barrier wait for whoever was taken off its core for a moment; asleep they would
            # lose theirs too. Without end, two processes that spin on the same cores slow each other tenfold.
            "OMP_NUM_THREADS": str(count),
            "GOMP_SPINCOUNT": "100000",
            "TOKENIZERS_PARALLELISM": "false",
        }

    # ---- the thread: it starts the children, so that it is its life that theirs is tied to --------------------------

    def _watch(self) -> None:
        for child in self._children:
            child.start()
        self._started.set()
        while not self._stopping.wait(0.1):
            self._take_over_tenants()
            for child in self._children:
                if child.returncode is not None:
                    self._restart(child)
            if self.failed:
                break
        for child in reversed(self._children):
            child.stop(self._grace_s)

    def _take_over_tenants(self) -> None:
        """If the tenants file has changed: the processes hear of it, and one that is restarted starts with it."""
        declared = self._tenants_watch.poll(time.monotonic(), self._declared) if self._tenants_watch is not None else None
        if declared is None:
            return
        self._declared = declared
        try:
            for child, settings in zip(self._children, self._settings(), strict=True):
                child.configure(settings)
            write_update(Path(self._sockets.tenants), declared)
        except (ConfigError, OSError) as error:
            logger.error("the changed tenants could not be handed on: %s", error)
            return
        self._say(f"the tenants file has changed: {self.num_tenants:,} tenants from now on")

    def _restart(self, child: Child) -> None:
        status = child.returncode or 0
        lived_s = time.monotonic() - child.started_s
        deaths = self._fast_deaths.get(child.name, 0) + 1 if lived_s < _FAST_DEATH_S else 1
        self._fast_deaths[child.name] = deaths
        if status == EXIT_BAD_SETTINGS or deaths >= (_MAX_FAST_KILLS if status < 0 else _MAX_FAST_EXITS):
            self.failed = f"the {child.name} process ended with status {child.returncode}; its messages above say why"
            logger.error("%s", self.failed)
            self.on_failed()
            return
        self._say(f"the {child.name} process ended with status {child.returncode}; starting it again")
        logger.warning("the %s process (pid %d) ended with status %s; starting it again", child.name, child.pid, child.returncode)
        child.stop(0.0)
        if deaths > 1 and self._stopping.wait(min(0.25 * 2 ** (deaths - 2), _MAX_BACKOFF_S)):
            return
        child.start()


def _socket_folder() -> Path:
    """A new folder for the sockets, 0700 (their only lock), with a path that a Unix socket can have. Raises `EngineStartError`."""
    for parent in (tempfile.gettempdir(), "/tmp"):
        if len(parent) <= _MAX_FOLDER_CHARS - 20 and Path(parent).is_dir():
            return Path(tempfile.mkdtemp(prefix="radixserve-", dir=parent))
    raise EngineStartError(
        f"the path of the folder for temporary files is too long for a socket; set TMPDIR to one of under {_MAX_FOLDER_CHARS - 20} characters"
    )
