"""The number of threads of a load before a device is chosen."""

import pytest

from engine.library.types import Details, ModelEntry, ModelFile, Origin
from engine.placement.load_settings import ONE_THREAD_BYTES, load_settings, usable_cores


def entry(size_bytes, *capabilities, kind="gguf"):
    return ModelEntry(
        id="m",
        name="m",
        format=kind,
        files=(ModelFile(path="/models/m.gguf", size_bytes=size_bytes, mtime_ns=1),),
        origin=Origin(kind="file"),
        details=Details(architecture="bert", capabilities=capabilities),
        added_at=0.0,
    )


@pytest.mark.parametrize(
    ("model", "wide"),
    [
        (entry(ONE_THREAD_BYTES - 1, "chat"), False),
        (entry(ONE_THREAD_BYTES, "chat"), True),
        (entry(ONE_THREAD_BYTES - 1, "embedding"), True),
        (entry(ONE_THREAD_BYTES - 1, "rerank"), True),
        (entry(ONE_THREAD_BYTES - 1, "embedding", kind="onnx"), False),
    ],
)
def test_tiny_models_take_one_thread_unless_they_embed(model, wide):
    settings = load_settings(model)
    assert settings.n_threads == settings.n_threads_batch == (usable_cores() if wide else 1)
