"""Buffer sizes read from a runner's log."""

from engine.runner.buffers import BufferLog

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
