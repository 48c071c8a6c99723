"""A runner's output, and buffer sizes read from its log."""

import asyncio
import os
import sys

import pytest

from engine.runner import protocol
from engine.runner.pipes import BufferLog, Pipes
from engine.runner.process import RunnerProcess

MIB = 1 << 20
LOG = """
load_tensors:   CPU_Mapped model buffer size =    16.01 MiB
load_tensors:      Vulkan0 model buffer size =   100.00 MiB
load_tensors:      Vulkan0 model buffer size =    50.00 MiB
llama_kv_cache:        CPU KV buffer size =     8.00 MiB
llama_kv_cache:        CPU KV buffer size =     4.00 MiB
llama_memory_recurrent: CPU RS buffer size =     1.00 MiB
sched_reserve:        CPU compute buffer size =     9.00 MiB
sched_reserve:        CPU compute buffer size =     7.50 MiB
llama_context:        CPU  output buffer size =     0.50 MiB
nothing here, and 5 MiB of it
"""


def test_sizes_add_up_by_buffer_and_the_last_reservation_counts():
    log = BufferLog()
    assert log.bytes() == {}
    for line in LOG.splitlines():
        log.read(line)
    assert log.bytes() == {
        "CPU_Mapped": round(16.01 * MIB),
        "Vulkan0": 150 * MIB,
        "CPU": round((8 + 4 + 1 + 7.5 + 0.5) * MIB),
    }


def test_of_a_reserved_cache_only_the_granted_cells_count():
    """Lines of a model with a sliding window; its small cache is fully used, and a GPU reserves no more."""
    log = BufferLog()
    for line in (
        "llama_kv_cache:        CPU KV buffer size =    64.00 MiB",
        "llama_kv_cache: size =   64.00 MiB ( 65536 cells,   4 layers,  4/1 seqs), K (f16):   32.00 MiB, V ...",
        "llama_kv_cache:        CPU KV buffer size =     2.00 MiB",
        "llama_kv_cache:    Vulkan0 KV buffer size =     2.00 MiB",
        "llama_kv_cache: size =    4.00 MiB (  1024 cells,   4 layers,  4/1 seqs), K (f16):    2.00 MiB, V ...",
    ):
        log.read(line)
    assert log.bytes(8192) == {"CPU": (8 + 2) * MIB, "Vulkan0": 2 * MIB}
    assert log.bytes() == {"CPU": 66 * MIB, "Vulkan0": 2 * MIB}


WRITES = """
import sys
for i in range(2000):
    sys.stdout.buffer.write(b"%05d" % i)
    sys.stdout.buffer.flush()
sys.stderr.write("written\\n")
sys.stderr.flush()
sys.stdin.readline()
sys.stdout.buffer.write(b"the end")
"""
ALL = b"".join(b"%05d" % i for i in range(2000)) + b"the end"


@pytest.mark.process
def test_all_of_a_child_arrives_in_order_also_what_it_wrote_before_anybody_listened():
    async def run():
        pipes, received = Pipes(), bytearray()
        process = await pipes.start((sys.executable, "-c", WRITES), dict(os.environ))
        line = await process.stderr.readline()
        pipes.deliver(received.extend)
        process.stdin.write(b"\n")
        assert await process.stdout.read() == b""  # no byte took the way through asyncio's reader
        return bytes(received), line, await process.wait()

    assert asyncio.run(run()) == (ALL, b"written\n", 0)


@pytest.mark.process
def test_frames_right_before_the_end_are_handled_before_it():
    """They are gathered after a first pair of frames."""
    messages = [protocol.Hello(version=protocol.VERSION, engine="x", pid=1), *[protocol.Heartbeat(step_s=1.0)] * 40]
    data = b"".join(protocol.frame(message) for message in messages)
    code = f"import os, time; data = {data!r}; os.write(1, data[:200]); time.sleep(0.0005); os.write(1, data[200:])"

    async def run():
        pipes = Pipes()
        process = await pipes.start((sys.executable, "-c", code), dict(os.environ))
        runner, handled, dying = RunnerProcess(process, pipes, ""), [], []
        dispatch = runner._dispatch
        runner._dispatch = lambda message: (handled.append(message), dying.append(runner.died), dispatch(message))
        await runner._exit_task
        return handled, dying

    handled, dying = asyncio.run(run())
    assert handled == messages
    assert dying == [None] * len(messages)
