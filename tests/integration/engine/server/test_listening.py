"""Socket options that a server's connections inherit."""

import asyncio
import socket

from engine.server.run import bind


def test_an_answer_of_several_pieces_is_not_held_back():
    """Checks TCP_NODELAY: without it the second chunk waits 40 ms for the receiver's delayed acknowledgement."""

    async def accepted():
        found = asyncio.get_running_loop().create_future()

        async def serve(reader, writer):
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind("127.0.0.1", 0)
        async with await asyncio.start_server(serve, sock=listener):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
            sent_at_once = await found
            writer.close()
            await writer.wait_closed()
        return sent_at_once

    assert asyncio.run(accepted())
