"""What `import radixserve as rs` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import radixserve
import radixserve_lang


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
