"""Weights from a Hugging Face folder: model.safetensors, or the files that its index names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from safetensors import SafetensorError, safe_open

from radixserve_runtime.model.errors import BrokenCheckpointError, UnsupportedModelError
from radixserve_runtime.model.hf_config import read_json
from radixserve_runtime.model.weights import Weights, assemble

if TYPE_CHECKING:
    from collections.abc import Collection

    import torch

    from radixserve_kernels.quantized import QuantizedWeight
    from radixserve_runtime.model.architecture import ModelConfig
    from radixserve_runtime.model.quantize import Quantizer
    from radixserve_runtime.model.weights import Progress

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = ("F32", "F16", "BF16", "F64")
#: Buffers that old checkpoints carry and that follow from config.json.
_IGNORED_SUFFIX = ".rotary_emb.inv_freq"


def load_safetensors(
    folder: Path, config: ModelConfig, dtype: torch.dtype, progress: Progress | None = None, quantizer: Quantizer | None = None
) -> Weights:
    """All weights in `dtype` on the CPU. Raises BrokenCheckpointError, and UnsupportedModelError for dtypes that aren't plain floats."""
    return assemble(config, _FolderSource(folder), dtype, progress, quantizer)


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...


class _Handle(Protocol):
    """What is used of the library's open file, which has no types."""

    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> _Slice: ...

    def get_tensor(self, name: str) -> torch.Tensor: ...


class _FolderSource:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Every file is mapped, and stays so until the source goes.
        self._handles = {name: _open(folder / name) for name in _files(folder)}
        self._file_of: dict[str, str] = {}
        for name, handle in self._handles.items():
            for tensor in handle.keys():  # noqa: SIM118 - a handle isn't iterable
                if not tensor.endswith(_IGNORED_SUFFIX):
                    self._file_of[tensor] = name

    @property
    def description(self) -> str:
        return str(self._folder)

    def names(self) -> Collection[str]:
        return self._file_of.keys()

    def stored_name(self, name: str) -> str:
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handle(name).get_slice(name).get_shape())

    def read_into(self, name: str, out: torch.Tensor) -> None:
        handle = self._handle(name)
        dtype = handle.get_slice(name).get_dtype()
        if dtype not in _DTYPES:
            raise UnsupportedModelError(
                f"{self._folder}: tensor {name!r} is stored as {dtype}; only {', '.join(_DTYPES)} are supported"
            )
        out.copy_(handle.get_tensor(name))

    def stored_kind(self, name: str) -> str:
        return self._handle(name).get_slice(name).get_dtype()

    def read_quantized(self, name: str) -> QuantizedWeight:
        raise UnsupportedModelError(
            f"{self._folder}: tensor {name!r} is stored as {self.stored_kind(name)}, which is no quantised form"
        )

    def _handle(self, name: str) -> _Handle:
        return self._handles[self._file_of[name]]


def _open(path: Path) -> _Handle:
    try:
        handle: _Handle = safe_open(path, framework="pt")
        return handle
    except FileNotFoundError:
        raise BrokenCheckpointError(f"{path} is missing, though the index names it; download the model again") from None
    except (SafetensorError, OSError) as error:
        raise BrokenCheckpointError(f"{path} is cut off or damaged ({error}); download it again") from error


def _files(folder: Path) -> list[str]:
    if (folder / _INDEX).is_file():
        return _indexed(folder / _INDEX)
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    other = " (PyTorch's pickled .bin files are never read: convert them to safetensors)" if any(folder.glob("*.bin")) else ""
    raise BrokenCheckpointError(f"{folder} has neither {_SINGLE} nor {_INDEX}{other}")


def _indexed(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BrokenCheckpointError(f"{index} has no 'weight_map'")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise BrokenCheckpointError(f"{index} names {name!r}, which lies outside of the model's folder")
    return names
