"""The check after a load: sound models pass, broken ones fail the load with a reason."""

import asyncio
import json
import shutil

import httpx2
import pytest
from msgspec.structs import replace as replaced

from engine.core.errors import SelfCheckFailed
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.model import load
from engine.runner.llama.native.self_check import LARGEST_DIFFERENCE, NUM_TOKENS, num_tokens, self_check
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import read_gguf
from tests.support.fakes.scripted import home_paths
from tests.support.models.shapes import Q, scaled, shallow, write_shape
from tests.support.runner_calls import collect, with_runner
from tests.support.servers import RunningServer


def write_nan(source, target):
    """A copy whose last norm contains NaN."""
    shutil.copy(source, target)
    tensor = next(t for t in read_gguf(source).tensors if t.name == "output_norm.weight")
    with target.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(b"\x00\x00\xc0\x7f")
    return target


@pytest.mark.parametrize(
    ("shape", "kv"),
    [
        ("llama-q4_0", "f16"),
        ("llama-q4_0", "q4_0"),
        ("gemma3", "q4_0"),
        ("qwen3moe", "q4_0"),
        ("mamba", "f16"),
        ("lfm2", "f16"),
        ("deepseek2", "f16"),
    ],
)
def test_sound_models_pass_by_far(tmp_path, shape, kv):
    path = write_shape(tmp_path / "model.gguf", shallow(shape))
    api = start_backends()
    loaded = load(api, LoadSettings(path=str(path), n_ctx=512, n_threads=1, type_k=kv), lambda _fraction: True)
    try:
        assert self_check(loaded, LlamaVocabulary(api, loaded.vocab)) < LARGEST_DIFFERENCE / 3
        assert api.llama_memory_seq_pos_max(loaded.memory, 0) == -1  # the check leaves nothing behind
    finally:
        loaded.close()


def test_a_mixtures_kernels_of_our_own_are_among_those_compared(tmp_path):
    path = write_shape(tmp_path / "model.gguf", scaled("qwen3moe", layers=1, experts=(64, 4, 64), qtype=Q.Q8_0))
    api = start_backends()
    settings = LoadSettings(path=str(path), n_ctx=512, n_threads=1)
    loaded = load(api, settings, lambda _fraction: True)
    try:
        assert num_tokens(loaded) == NUM_TOKENS
        loaded.settings = replaced(settings, tiles=("Q8_0",))
        assert num_tokens(loaded) == 64 // 4
        assert self_check(loaded, LlamaVocabulary(api, loaded.vocab)) < LARGEST_DIFFERENCE / 3
    finally:
        loaded.close()


def test_weights_that_are_not_numbers_end_the_load(bundled_model, tmp_path):
    path = write_nan(bundled_model, tmp_path / "nan.gguf")
    with pytest.raises(SelfCheckFailed, match="not a number"):
        with_runner(path, lambda runner: collect(runner, "x"))


def test_on_the_processor_our_kernels_and_rewritten_weights_are_given_up(tmp_path):
    settings = LoadSettings(path="m.gguf", tiles=("Q8_0",))
    admission = MemoryAdmission(Placer(open_resources(home_paths(tmp_path))))
    error = SelfCheckFailed("m.gguf", "difference 1.40")
    fallback = asyncio.run(admission.retry("m", settings, error))
    assert fallback is not None
    assert fallback.settings == LoadSettings(path="m.gguf")
    fallback = asyncio.run(admission.retry("m", fallback.settings, error))
    assert fallback is not None
    assert not fallback.settings.repack
    assert asyncio.run(admission.retry("m", fallback.settings, error)) is None


def test_the_server_tries_the_ladder_and_says_what_happened(bundled_model, tmp_path):
    (tmp_path / "models").mkdir()
    write_nan(bundled_model, tmp_path / "models" / "nan.gguf")
    server = RunningServer(tmp_path)
    try:
        body = {"model": "nan.gguf", "prompt": "x", "max_tokens": 4}
        answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 422
        error = json.loads(answer.text)["error"]
        assert error["code"] == "self_check_failed"
        assert "not a number" in error["message"]
        assert "trying: use the weights as stored in the file" in server.log
    finally:
        server.stop()
