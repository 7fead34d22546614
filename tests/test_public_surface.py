"""What `import radixserve as rs` offers, and what it costs."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import radixserve
import radixserve_lang

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_every_public_name_is_there() -> None:
    assert sorted(radixserve.__all__) == sorted(
        [*radixserve_lang.__all__, "Engine", "EngineStartError", "ConfigError", "ModelError", "__version__"]
    )
    for name in radixserve.__all__:
        assert getattr(radixserve, name) is not None


def test_importing_stays_light() -> None:
    code = (
        "import sys, radixserve, radixserve_runtime.protocol, radixserve_tokenizer.protocol, radixserve.cli;"
        "print([m for m in ('torch', 'transformers', 'xgrammar', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def own_attributes(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that are written by us, inherited ones too."""
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(function) and function.__module__.startswith("radixserve"):
            yield name, function


def test_every_public_name_and_method_says_what_it_is() -> None:
    silent: list[str] = []
    spoken = 0
    for module in (radixserve, radixserve.testing):
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, str):  # the version
                continue
            own = value.__doc__ or ""
            if dataclasses.is_dataclass(value) and own.startswith(f"{name}("):  # Python's own
                own = ""
            silent += [name] if not own.strip() else []
            if not inspect.isclass(value):
                continue
            for attribute, function in own_attributes(value):
                spoken += 1
                silent += [f"{name}.{attribute}"] if not (function.__doc__ or "").strip() else []
    assert not silent
    assert spoken > 80
