"""Parts that cannot be loaded are reported with llama.cpp's reason: draft models, adapters, projectors."""

import asyncio

import pytest

from devices.errors import TesseraError
from engine.core.errors import FileRefused, NoLoadSurvived, RunnerDied
from engine.core.types import GenerationRequest, Image
from engine.message_catalog import sentence
from engine.runner.exit_reasons import exit_reason, file_to_blame
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from engine.server.errors import lookup, retry_header
from tests.support.models.broken_models import BROKEN, write_broken

# The smallest image: one red pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c49444154789c63f8cfc000000301010018dd8db00000000049454e44ae426082"
)


async def load(path, then=None, **settings):
    runner = await RunnerProcess.start("llama", str(path))
    try:
        await runner.load(LoadSettings(path=str(path), n_ctx=256, n_threads=1, **settings))
        return None if then is None else await then(runner)
    finally:
        await runner.stop()


@pytest.mark.parametrize("kind", ["architecture", "too-many-layers"])
@pytest.mark.parametrize("beside", ["draft", "adapter"])
def test_a_part_that_cannot_be_read_is_named_with_the_reason(bundled_model, tmp_path, kind, beside):
    path = write_broken(bundled_model, tmp_path / f"{beside}.gguf", kind)
    settings = {"draft_path": str(path)} if beside == "draft" else {"lora": (str(path),)}
    reason = BROKEN[kind] if beside == "draft" else "expect general.type to be 'adapter'"
    with pytest.raises(FileRefused) as caught:
        asyncio.run(load(bundled_model, **settings))
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize("embeddings", [False, True])
def test_an_embedding_model_that_cannot_be_read_says_why(bundled_model, tmp_path, embeddings):
    path = write_broken(bundled_model, tmp_path / "model.gguf", "no-merges")
    with pytest.raises(FileRefused, match=BROKEN["no-merges"]):
        asyncio.run(load(path, embeddings=embeddings))


def test_a_projector_that_does_not_fit_leaves_a_model_of_text_and_its_reason(bundled_model, tmp_path):
    projector = tmp_path / "mmproj.gguf"
    projector.write_bytes(b"GGUF nonsense")

    async def look(runner):
        request = GenerationRequest(prompt="x <__media__>", images=(Image(data=PNG),), max_tokens=1)
        with pytest.raises(TesseraError) as caught:
            async for _ in runner.generate(request):
                pass
        return str(caught.value)

    told = asyncio.run(load(bundled_model, look, mmproj_path=str(projector)))
    assert "he projector mmproj.gguf does not fit this model: " in told
    assert "this GGUF file is version" in told


def test_only_ends_that_the_file_brings_about_are_blamed_on_it():
    check = "/src/llama-vocab.cpp:3554: GGML_ASSERT(special_bos_id != LLAMA_TOKEN_NULL) failed"
    thrown = ["terminate called after throwing an instance of 'std::out_of_range'", "  what():  map::at"]
    told = sentence(file_to_blame(-6, ["x", check], weights_read=False))
    assert told.startswith(
        "llama.cpp crashes when it reads the file: llama-vocab.cpp:3554: GGML_ASSERT(special_bos_id"
    )
    assert "map::at" in sentence(file_to_blame(-6, thrown, weights_read=True))
    part = ["tessera: loading the projector /models/mmproj.gguf", check]
    blamed = sentence(file_to_blame(-6, part, weights_read=True))
    assert "llama.cpp crashes when it reads the projector /models/mmproj.gguf" in blamed
    assert file_to_blame(-11, [], weights_read=False) is not None
    for code, lines, weights_read in (
        (-11, [], True),  # perhaps a defective kernel
        (-9, [check], False),  # killed
        (3, [check], False),
        (-6, ["ggml-cuda.cu:88: CUDA error"], False),
        (-6, ["  what():  std::bad_alloc"], False),
        (-6, ["ggml-backend.cpp:10: GGML_ASSERT(buffer) failed"], False),
    ):
        assert file_to_blame(code, lines, weights_read=weights_read) is None


def test_a_file_that_no_load_survives_is_no_fault_of_the_server():
    error = NoLoadSurvived("/m/a.gguf", RunnerDied(-11, exit_reason(-11, stopping=False)))
    assert str(error).startswith("/m/a.gguf cannot be loaded: the model's process ended: a native crash")
    assert (lookup(error)[0], error.code, retry_header(error)) == (
        422,
        "bad_model_file",
        {"x-should-retry": "false"},
    )
