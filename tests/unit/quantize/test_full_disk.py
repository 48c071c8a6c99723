"""What a writer says of a disk that refuses."""

import resource

import pytest

from quantize.convert.tensor_map import Metadata
from quantize.errors import NotWritable
from quantize.files.gguf_write import GgufWriter, TensorSlot
from quantize.ggml_types import GgmlType


def test_a_file_system_of_small_files_is_named(tmp_path):
    """The kernel refuses more bytes, as FAT32 does after 4 GiB."""
    path, size = tmp_path / "out.gguf", 1 << 20
    writer = GgufWriter(
        path, Metadata("llama"), [TensorSlot("token_embd.weight", (256, size // 1024), GgmlType.F32)]
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        with pytest.raises(NotWritable, match=r"out.gguf cannot be written: .*of 1,048,\d+ bytes") as caught:
            writer.write("token_embd.weight", (bytes(4096) for _ in range(size // 4096)))
        writer.abandon()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.path == str(path)
