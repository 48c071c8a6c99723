"""Cached results belong to their source: files changed meanwhile, and parts next to the first."""

import shutil

import pytest

from devices.errors import Cancelled
from quantize.errors import MissingParts, SourceChanged
from quantize.files.gguf_file import read_gguf
from quantize.files.measurement_folder import WorkFolder, file_sha256, hash_is_cached, model_sha256
from quantize.gptq.tensors import TensorsRequest, packed_path, round_tensors
from quantize.job.phases import JobPhases
from quantize.job.source import check_unchanged, identity
from quantize.measurements import MeasureRequest, RoundRequest
from tests.support.models.measured_model import SOURCE

NAMES = ("blk.0.attn_q.weight", "blk.1.attn_q.weight", "blk.2.attn_q.weight")


def measured(folder, source):
    (folder / "text").write_text("x")
    return MeasureRequest(source=source, calibration=folder / "text", cache_dir=folder / "cache")


def test_tensors_of_a_file_that_was_written_to_are_not_kept(tmp_path):
    source = shutil.copy(SOURCE, tmp_path / "source.gguf")
    task = RoundRequest(measure=measured(tmp_path, source), types=dict.fromkeys(NAMES, "Q4_0"), rounding="stock")
    places = {t.name: t.offset for t in read_gguf(source).tensors}

    def spoil(done, total, name):
        if name == NAMES[1]:  # it was read, but is not cached yet; the next one is read changed
            with source.open("r+b") as file:
                file.seek(places[NAMES[2]])
                file.write(bytes(4096))

    with pytest.raises(SourceChanged, match=source.name):
        round_tensors(TensorsRequest(round=task, names=NAMES), spoil)

    shutil.copy(SOURCE, source)
    folder = WorkFolder.open(task.measure)
    assert [packed_path(folder, task, name).exists() for name in NAMES] == [True, False, False]
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_a_model_in_parts_is_known_by_all_of_them(tmp_path):
    parts = [tmp_path / f"model-0000{n}-of-00002.gguf" for n in (1, 2)]
    for n, part in enumerate(parts):
        part.write_bytes(bytes([n]) * 100)
    cache = tmp_path / "cache"
    assert not hash_is_cached(parts[0], cache)
    before, seen = model_sha256(parts[0], cache), identity(parts[0])
    assert hash_is_cached(parts[0], cache)
    request = measured(tmp_path, parts[0])
    place = WorkFolder.open(request).path

    parts[1].write_bytes(bytes([7]) * 100)

    assert not hash_is_cached(parts[0], cache)
    assert model_sha256(parts[0], cache) != before
    assert WorkFolder.open(request).path != place
    with pytest.raises(SourceChanged):
        check_unchanged(parts[0], seen)

    parts[1].unlink()
    with pytest.raises(MissingParts, match=parts[1].name):
        identity(parts[0])


def test_hashing_a_large_file_reports_and_can_be_stopped(tmp_path):
    path, seen, stop = tmp_path / "model.gguf", [], []
    with path.open("wb") as file:
        file.truncate(20 << 20)
    phases = JobPhases(seen.append, lambda: bool(stop))
    digest = model_sha256(path, None, phases.counted("hash", 20 << 20))
    assert digest == file_sha256(path)
    assert [(p.phase, p.total) for p in seen] == [("hash", 20 << 20)] * 5
    assert [p.done for p in seen] == [(n + 1) << 22 for n in range(5)]
    stop.append(True)
    with pytest.raises(Cancelled):
        model_sha256(path, tmp_path / "cache", phases.counted("hash", 20 << 20))
    assert not (tmp_path / "cache").exists()
