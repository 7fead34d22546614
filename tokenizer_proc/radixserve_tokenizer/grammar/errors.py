"""Why a constraint is refused."""

from __future__ import annotations


class ConstraintError(ValueError):
    """This constraint can't be enforced as it stands. The text says where, and what to change."""

    def __init__(self, message: str, pointer: str | None = None) -> None:
        self.pointer = pointer
        """JSON pointer (RFC 6901) into the schema, "" for its root; None where there is no schema."""
        super().__init__(message if pointer is None else f"{pointer or 'the schema'}: {message}")
