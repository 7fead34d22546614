"""How the command line logs."""

from __future__ import annotations

import logging


def configure_logging(level: str) -> None:
    """Plain lines on standard error."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")
