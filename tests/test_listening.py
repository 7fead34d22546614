"""The listening socket of `radixserve serve`."""

from __future__ import annotations

import asyncio
import socket

from radixserve.serve import _listen


def test_connections_send_small_pieces_at_once() -> None:
    """Without TCP_NODELAY the second event of a stream waits for the client's delayed acknowledgement, about 40 ms."""

    async def flag_of_a_connection() -> int:
        flags: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            flags.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with _listen("127.0.0.1", 0) as listener:
            async with await asyncio.start_server(connected, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
                flag = await asyncio.wait_for(flags, 10)
                writer.close()
                return flag

    assert asyncio.run(flag_of_a_connection())
