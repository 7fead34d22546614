"""Fixtures that every area may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real bundled model, fetched once into the user's cache directory."""
    from radixserve.models import resolve

    return resolve("smollm2-135m")
