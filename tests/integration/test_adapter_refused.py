"""An adapter of the original is refused where a file's inputs were evened out: it would answer nonsense."""

import asyncio

import pytest
from lora_adapter import write_adapter

from engine.errors import BadModelFile
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import read_gguf
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata, scalar
from quantize.files.provenance import KEY, Provenance


@pytest.fixture
def smoothed(bundled_model, tmp_path):
    """The bundled model, saying that its inputs were evened out."""
    source, path = read_gguf(bundled_model), tmp_path / "smooth.gguf"
    said = {**copied_metadata(source), KEY: scalar(Provenance(tier="max", smoothed=True).encode())}
    writer = GgufWriter(path, said, [TensorSlot(t.name, t.shape, t.ggml_type) for t in source.tensors])
    for tensor in source.tensors:
        writer.write(tensor.name, [source.tensor_bytes(tensor)])
    writer.close()
    return path


async def load(path, lora):
    runner = await RunnerProcess.start("llama", str(path))
    try:
        return await runner.load(LoadSettings(path=str(path), n_ctx=256, n_threads=1, lora=lora))
    finally:
        await runner.stop()


def test_it_is_refused_with_the_reason_and_the_file_alone_loads(smoothed, tmp_path):
    adapter = write_adapter(tmp_path / "one.gguf", 0.3, seed=1)
    with pytest.raises(BadModelFile, match="evened out"):
        asyncio.run(load(smoothed, (adapter,)))
    asyncio.run(load(smoothed, ()))
