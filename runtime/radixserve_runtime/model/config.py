"""Reading a checkpoint's own description, whatever its format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.model.architecture import ModelConfig, RopeScaling
from radixserve_runtime.model.errors import (
    BrokenCheckpointError,
    ModelError,
    UnsupportedArchitectureError,
    UnsupportedModelError,
)
from radixserve_runtime.model.gguf_config import config_from_gguf
from radixserve_runtime.model.gguf_file import GgufFile
from radixserve_runtime.model.hf_config import config_from_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "ModelConfig",
    "RopeScaling",
    "read_config",
    "ModelError",
    "UnsupportedModelError",
    "UnsupportedArchitectureError",
    "BrokenCheckpointError",
]


def read_config(path: Path) -> ModelConfig:
    """The model in `path`: a GGUF file, or a Hugging Face folder with config.json. Reads no weights.

    Raises UnsupportedArchitectureError and UnsupportedModelError for what the decoder can't run, BrokenCheckpointError
    for files that are missing or make no sense.
    """
    if path.is_dir():
        return config_from_folder(path)
    if path.is_file():
        return config_from_gguf(GgufFile(path))
    raise BrokenCheckpointError(f"there is no model at {path}: give a GGUF file or a folder with config.json")
