"""What can be wrong with a checkpoint.

ModelError
├── UnsupportedModelError            a sound checkpoint that this engine doesn't run
│   └── UnsupportedArchitectureError
└── BrokenCheckpointError            missing, cut off or contradictory files
"""

from __future__ import annotations


class ModelError(Exception):
    """Base of everything that loading a model raises on purpose."""


class UnsupportedModelError(ModelError):
    """The checkpoint uses a feature that the decoder lacks (a rope scaling, a quantisation, an activation)."""


class UnsupportedArchitectureError(UnsupportedModelError):
    """The checkpoint is of another architecture."""

    def __init__(self, architecture: str, source: object) -> None:
        super().__init__(
            f"architecture {architecture} is not supported ({source}); "
            "RadixServe serves Llama, SmolLM, Mistral, Qwen2 and Qwen3 models"
        )
        self.architecture = architecture


class BrokenCheckpointError(ModelError):
    """A file of the checkpoint is missing, cut off, or doesn't say what it must."""
