"""A LoRA adapter is refused for a smoothed file without known scales, because its output would be nonsense."""

import asyncio
import errno

import pytest

from engine.core.errors import BadModelFile
from engine.runner.llama.batch import fitted_adapter
from engine.runner.llama.native.model import LoadFailed
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.files import channel_scales
from quantize.files.channel_scales import ChannelScales
from quantize.files.gguf_file import read_gguf
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata, scalar
from quantize.files.provenance import KEY, Provenance
from tests.support.models.lora_adapter import write_adapter

OF_ANOTHER = ChannelScales.of({"blk.0.attn_q.weight": [1] * 64}, {}).encode()


def smoothed(bundled_model, path, scales=None):
    """The bundled model, marked as smoothed, with the given scales."""
    source = read_gguf(bundled_model)
    said = {**copied_metadata(source), KEY: scalar(Provenance(tier="max", smoothed=True).encode())}
    if scales is not None:
        said[channel_scales.KEY] = scalar(scales)
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


@pytest.mark.parametrize(
    ("scales", "reason"),
    [(None, "smoothed"), ("!", "smoothed"), ("AAAA", "smoothed"), (OF_ANOTHER, "256 channels, not 64")],
)
def test_it_is_refused_with_the_reason_and_the_file_alone_loads(bundled_model, tmp_path, scales, reason):
    file = smoothed(bundled_model, tmp_path / "smooth.gguf", scales)
    adapter = write_adapter(tmp_path / "one.gguf", 0.3, seed=1)
    with pytest.raises(BadModelFile, match=reason):
        asyncio.run(load(file, (adapter,)))
    asyncio.run(load(file, ()))


def test_one_that_is_no_adapter_is_refused(bundled_model, tmp_path):
    file = smoothed(bundled_model, tmp_path / "smooth.gguf", ChannelScales.of({}, {}).encode())
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF nonsense")
    with pytest.raises(BadModelFile, match="damaged"):
        asyncio.run(load(file, (str(other),)))


def test_a_copy_that_finds_no_room_is_told_as_that(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fitted_adapter, "_write", full)
    said = {channel_scales.KEY: ChannelScales.of({}, {}).encode()}
    room = pytest.raises(LoadFailed, match=r"could not be written.*No space")
    with room, fitted_adapter.fitted(tmp_path / "one.gguf", said):
        pytest.fail("there is a copy")
