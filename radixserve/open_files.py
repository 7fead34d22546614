"""How many connections this process may have open: the system's limit of files is raised as far as it may be."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

#: Files that are no connections: sockets to the engine, logs, libraries, and connections that are being refused.
_OTHERS = 512


def allow_connections(wanted: int) -> int:
    """Raise the limit of open files for so many connections; as many as there may be then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHERS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError):
        most = soft
    if most >= needed:
        return wanted
    allowed = max(most // 2, most - _OTHERS)
    logger.warning("this process may open %d files: at most %d connections are taken, not %d", most, allowed, wanted)
    return allowed
