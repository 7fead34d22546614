"""By what the core knows a connection: where it came in, whose key it showed there, and what its socket calls it."""

from __future__ import annotations

#: Length of a CURVE key as text (Z85).
CURVE_KEY_CHARS = 40
_LOCAL, _REMOTE = b"\0", b"\1"


def local_peer(routing_id: bytes) -> bytes:
    """A connection of the local socket."""
    return _LOCAL + routing_id


def remote_peer(curve_key: str, routing_id: bytes) -> bytes:
    """A connection over TCP. Its key is part of it: nobody with another key can pass for it, whatever it calls itself."""
    return _REMOTE + curve_key.encode() + routing_id


def routing_id_of(identity: bytes) -> bytes:
    """What its socket calls it."""
    return identity[1 + CURVE_KEY_CHARS :] if is_remote(identity) else identity[1:]


def is_remote(identity: bytes) -> bool:
    """Whether it came in over TCP."""
    return identity[:1] == _REMOTE


def curve_key_of(identity: bytes) -> str | None:
    """The key that it showed; None for a local connection, which its owner's file permissions guard."""
    return identity[1 : 1 + CURVE_KEY_CHARS].decode() if is_remote(identity) else None


def describe(identity: bytes) -> str:
    """For the log."""
    key = curve_key_of(identity)
    return routing_id_of(identity).hex() + (f" over TCP, key {key[:8]}..." if key else "")
