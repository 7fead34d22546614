"""RadixServe: an engine that serves agent programs, for many tenants at once, from one language model."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import radixserve_lang
from radixserve_lang import *  # noqa: F403

if TYPE_CHECKING:
    from radixserve.engine import Engine as Engine

try:
    __version__ = version("radixserve")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["Engine", "__version__"]
__all__ += radixserve_lang.__all__


def __getattr__(name: str) -> object:
    # The launcher is only needed by those who start an engine; connecting to one stays light.
    if name == "Engine":
        from radixserve.engine import Engine

        return Engine
    raise AttributeError(f"module 'radixserve' has no attribute {name!r}")
