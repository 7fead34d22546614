"""From messages to frames. Each message is encoded when it is sent, so that an error shows at the line that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer.protocol import MAX_FRAME_BYTES, MalformedFrameError, decode_from_client, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_tokenizer.protocol import FromClient

#: Room for the array header of a frame (msgpack array32).
HEADER_BYTES = 5
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES - HEADER_BYTES


def encode_message(message: FromClient) -> bytes:
    """One message as msgpack; raises ValueError when it can't be sent: a value of the wrong type, lone surrogates, too long.

    It is decoded again, because a server can't tell whose message a malformed one was, and would end every program of
    the connection.
    """
    kind = type(message).__name__
    try:
        # A frame of one message is the array header 0x91 and then the message.
        frame = encode([message])
        if len(frame) - 1 <= MAX_MESSAGE_BYTES:
            decode_from_client(frame)
            return frame[1:]
    except (UnicodeEncodeError, OverflowError, TypeError, MalformedFrameError) as error:
        raise ValueError(f"this {kind} can't be sent: {str(error).replace('$[0].', '')}") from error
    raise ValueError(
        f"this {kind} has {len(frame)} bytes, more than the {MAX_MESSAGE_BYTES} of a frame; append the text in smaller parts"
    )


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
