"""The runtime process: `python -m radixserve_runtime`, its settings as JSON on standard input."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import signal
import sys
import threading

import msgspec

from radixserve_runtime.config import RuntimeConfig

logger = logging.getLogger("radixserve_runtime")

#: Exit status when the settings can't be used: starting again is no use (EX_CONFIG of sysexits.h).
EXIT_BAD_SETTINGS = 78
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Load, serve until SIGTERM, and end."""
    _die_with_parent()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    try:
        config = msgspec.json.decode(sys.stdin.buffer.read(), type=RuntimeConfig)
    except msgspec.MsgspecError as error:
        logger.error("the settings on standard input can't be read: %s", error)
        return EXIT_BAD_SETTINGS
    logging.getLogger().setLevel(config.log_level.upper())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _serve(config, stop)


def _serve(config: RuntimeConfig, stop: threading.Event) -> int:
    import torch

    from radixserve_kernels.cpu.cores import hold_cores
    from radixserve_kernels.registry import BackendUnavailableError
    from radixserve_runtime.engine.build import PoolTooLargeError, build_core
    from radixserve_runtime.engine.loop import run_loop
    from radixserve_runtime.engine.transport import Transport
    from radixserve_runtime.model.errors import ModelError

    # xgrammar takes most of a second to import; the weights are read meanwhile.
    threading.Thread(target=importlib.import_module, args=("xgrammar",), daemon=True).start()
    torch.set_num_threads(config.num_threads or len(os.sched_getaffinity(0)))
    try:
        core = build_core(config)
    except (ModelError, BackendUnavailableError, PoolTooLargeError) as error:
        logger.error("%s", error)
        return EXIT_BAD_SETTINGS
    transport = Transport(config.socket, stats=core.stats, heartbeat_s=config.heartbeat_s, peer_timeout_s=config.peer_timeout_s)
    transport.start()
    # Now that all other threads are there: they go where there is room.
    if config.pin_threads and config.device == "cpu" and hold_cores(torch.get_num_threads()):
        logger.info("each computing thread has a core of its own")
    try:
        run_loop(core, transport, stop)
    finally:
        transport.close()
    return 0


def _die_with_parent() -> None:
    """Ask the kernel to end this process when the launcher is killed (Linux; elsewhere the launcher's own end must do)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
