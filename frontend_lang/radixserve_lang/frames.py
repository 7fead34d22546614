"""From messages to frames. Each message is encoded when it is sent, so that an error shows at the line that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer.protocol import MAX_FRAME_BYTES, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_tokenizer.protocol import FromClient

#: Room for the array header of a frame (msgpack array32).
HEADER_BYTES = 5
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES - HEADER_BYTES


def encode_message(message: FromClient) -> bytes:
    """One message as msgpack; raises ValueError when it can't be sent (lone surrogates, a number beyond 64 bits, too long)."""
    kind = type(message).__name__
    try:
        # A frame of one message is the array header 0x91 and then the message.
        data = encode([message])[1:]
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise ValueError(f"this {kind} can't be sent: {error}") from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"this {kind} has {len(data)} bytes, more than the {MAX_MESSAGE_BYTES} of a frame; append the text in smaller parts"
        )
    return data


def join_frame(messages: Sequence[bytes]) -> bytes:
    """A frame of messages from `encode_message`."""
    count = len(messages)
    if count < 16:
        header = bytes((0x90 | count,))
    elif count < 1 << 16:
        header = b"\xdc" + count.to_bytes(2, "big")
    else:
        header = b"\xdd" + count.to_bytes(4, "big")
    return header + b"".join(messages)
