"""RadixServe: an engine that serves agent programs, for many tenants at once, from one language model."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import radixserve_lang
from radixserve_lang import *  # noqa: F403

if TYPE_CHECKING:
    from radixserve.config import ConfigError as ConfigError
    from radixserve.engine import Engine as Engine
    from radixserve.engine import EngineStartError as EngineStartError
    from radixserve.models import ModelError as ModelError

try:
    __version__ = version("radixserve")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["Engine", "EngineStartError", "ConfigError", "ModelError", "__version__"]
__all__ += radixserve_lang.__all__

# The launcher is only needed by those who start an engine; connecting to one stays light.
_LAZY = {
    "Engine": "radixserve.engine",
    "EngineStartError": "radixserve.engine",
    "ConfigError": "radixserve.config",
    "ModelError": "radixserve.models",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'radixserve' has no attribute {name!r}")
