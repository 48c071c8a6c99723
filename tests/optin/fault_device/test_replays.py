"""Ten historical faults of llama.cpp, replayed by the fault device: which check finds each, and when.

Opt-in: `python -m pytest tests/optin/fault_device/test_replays.py -s`. Needs g++ and the locked source. The plugin
computes on the CPU and falsifies results as the public thread describes (replay() in fault_device.cpp). The checks
are those of a load and of an idle server, with a server's batches.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from engine.runner.llama import deep_check_child
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.device_check import DeviceWrong
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.model import load
from engine.runner.llama.native.row_check import RowRecorder, judged
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.reference_child import compute, reference_settings
from engine.runner.llama.service import compared
from engine.runner.protocol import LoadSettings, RowsRecorded, SampledRow
from tests.optin.fault_device.plugin import build
from tests.support.check_clock import replace_clock
from tests.support.models.shapes import SHAPES, scaled, shallow, write_shape

WORK = Path(os.environ.get("FAULT_DEVICE_WORK", ROOT / "build" / "fault_device"))
SPARK = str(ROOT / "assets/models/spark-f16.gguf")
UBATCH, DEPTH = 512, 5000
# Each fault with the settings that show it, and the check that detects it: a load's, or an idle server's.
FAULTS = {
    "25992": ("f16", "", "load"),
    "28211": ("f16", f"ubatch={UBATCH}", "load"),
    "27506": ("f16", "", "load"),
    "28537": ("f16", "", "load"),
    "27579": ("f16", f"ubatch={UBATCH}", "load"),
    "26239": ("f16", "depth=4676", "idle"),
    "28648": ("f16", f"ubatch={UBATCH}", "load"),
    "27237": ("f16", f"ubatch={UBATCH}", "load"),
    "25382": ("q8_0", "", "load"),
    "23690": ("q8_0", "", "load"),
}


class FaultDevice:
    """The plugin, loaded into this process."""

    def __init__(self) -> None:
        plugin = str(build(WORK))
        self.api = start_backends()
        self._silence = self.api.llama_log_callback(lambda _level, _text, _data: None)
        self.api.llama_log_set(self._silence, ctypes.c_void_p(None))
        self.api._lib.ggml_backend_load.restype = ctypes.c_void_p
        assert self.api._lib.ggml_backend_load(plugin.encode())
        self._plugin = ctypes.CDLL(plugin)
        self._plugin.fault_device_count.restype = ctypes.c_long

    def set(self, fault: str) -> None:
        self._plugin.fault_device_set(fault.encode())

    @property
    def count(self) -> int:
        """The number of altered results."""
        return int(self._plugin.fault_device_count())


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The checks stop by CPU time, as on an idle computer."""
    replace_clock(monkeypatch, time.process_time)


@pytest.fixture(scope="module")
def device():
    return FaultDevice()


@pytest.fixture(scope="module")
def expected(device, tmp_path_factory):
    """The path of the CPU's reference, by file and cache type."""
    folder, paths = tmp_path_factory.mktemp("references"), {}

    def path_of(settings: LoadSettings) -> str:
        key = (settings.path, settings.type_k)
        if key not in paths:
            paths[key] = folder / f"{len(paths)}.msgpack"
            reference = compute(device.api, reference_settings(settings), settings.n_ctx)
            paths[key].write_bytes(msgspec.msgpack.encode(reference))
        return str(paths[key])

    return path_of


def settings_for(path: str, cache: str = "f16", **changes) -> LoadSettings:
    usual = {"n_ctx": 8192, "n_parallel": 4, "n_threads": 1, "n_threads_batch": 1, "n_batch": 2048}
    usual |= {"n_ubatch": UBATCH, "devices": ("Fault0",), "n_gpu_layers": 999, "flash_attn": "on"}
    return LoadSettings(path=path, type_k=cache, type_v=cache, **{**usual, **changes})


def found_at_load(device: FaultDevice, settings: LoadSettings, reference: str, fault: str) -> str:
    """The findings of a first load's checks; empty if there are none."""
    device.set("")
    settings = msgspec.structs.replace(settings, reference_path=reference)
    loaded = load(device.api, settings, lambda _fraction: True)
    device.set(fault)
    try:
        compared(loaded, LlamaVocabulary(device.api, loaded.vocab))
    except DeviceWrong as error:
        return str(error)
    finally:
        loaded.close()
    return ""


def found_in_answers(device: FaultDevice, settings: LoadSettings, fault: str, prompt: int, most: int) -> int | None:
    """Answer tokens until the canary detects it, for a prompt of this length; None: not within `most`."""
    loaded = load(device.api, settings, lambda _fraction: True)
    device.set(fault)
    recorder, batch, logits = RowRecorder(loaded, 256), Batch(loaded), Logits(loaded)

    class Answer:
        media, forgotten = None, 0
        request = msgspec.defstruct("Request", [("lora", tuple, ())])()

        def __init__(self) -> None:
            self.tokens = [5 + i * 7 % 900 for i in range(prompt)]
            self.recorded_rows: list[SampledRow] = []

    answer, recorded = Answer(), list[RowsRecorded]()
    try:
        for at in range(0, prompt, settings.n_batch):
            piece = answer.tokens[at : at + settings.n_batch]
            batch.add_prompt(piece, at, 0, last=at + len(piece) == prompt)
            assert batch.decode() == 0
            if not batch.outputs:
                batch.clear()
        for _ in range(most):
            row = logits.rows(1)[0]
            recorder.see(answer, row, batch)
            answer.tokens.append(int(row.argmax()))
            batch.clear()
            batch.add(answer.tokens[-1], len(answer.tokens) - 1, 0)
            assert batch.decode() == 0
        recorder.end(answer, 1.0)
        recorded = recorder.take()
    finally:
        device.set("")
        loaded.close()
    plain = reference_settings(settings)
    for one in recorded:
        for row in one.rows:
            alone = RowsRecorded(
                tokens=one.tokens[: row.position + 1], rows=[row], steps_s=one.steps_s, recording_s=one.recording_s
            )
            if judged(device.api, plain, alone).wrong:
                return row.position + 1 - prompt
    return None


# Faults that nobody has reported, with the settings that show them.
VARIANTS = {
    "three sequences": ("sequences=3", {}),
    "more than four sequences": ("sequences=+4", {"n_parallel": 8}),
    "seven rows of a draft": ("size=7;outputs=all", {}),
    "no numbers for twelve rows of a draft": ("size=12;outputs=all;number=nan", {}),
    "more rows than an ubatch has without others": (f"size={UBATCH};sequences=+1", {}),
    "chunks of deterministic requests": ("size=512;sequences=1", {"n_ubatch": 1024}),
    "the end of a long prompt": ("size=247", {}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_fault_that_nobody_reported_is_found_before_the_first_answer(device, expected, name):
    fields, changes = VARIANTS[name]
    settings = settings_for(SPARK, **changes)
    said = found_at_load(device, settings, expected(settings), f"history=variant;{fields}")
    print(f"\n{name}: {said or 'nothing'}", flush=True)
    assert device.count > 0
    assert said


@pytest.mark.parametrize("number", FAULTS)
def test_a_historical_fault_is_found(device, expected, number):
    cache, fields, where = FAULTS[number]
    settings, fault = settings_for(SPARK, cache), f"history={number};{fields}"
    started = time.process_time()
    said = found_at_load(device, settings, expected(settings), fault)
    assert device.count > 0 or where == "idle"
    print(f"\n{number} at the load ({time.process_time() - started:.1f} CPU s): {said or 'nothing'}", flush=True)
    if where == "load":
        assert said
        return
    device.set(fault)
    deep = deep_check_child.compared(settings, DEPTH)
    device.set("")
    print(f"{number} while idle: {deep.get('wrong')} {deep.get('nats', deep.get('reason'))}", flush=True)
    assert deep.get("wrong")
    tokens = found_in_answers(device, settings, fault, 4700, 300)
    print(f"{number} in answers: after {tokens} tokens", flush=True)
    assert tokens is not None


def test_a_sound_device_raises_no_alarm(device, expected):
    for cache in ("f16", "q8_0"):
        settings = settings_for(SPARK, cache)
        started = time.process_time()
        assert found_at_load(device, settings, expected(settings), "") == ""
        at_load = time.process_time() - started
        found = deep_check_child.compared(settings, 2000)
        idle = time.process_time() - started - at_load
        print(f"\n{cache}: {at_load:.1f} CPU s at the load, {idle:.1f} while idle, {found}", flush=True)
        assert "wrong" not in found


# Every pair of cache type, attention and ubatch, over the shapes.
COMBINATIONS = (
    ("f16", "on", 64), ("f16", "off", 128), ("q8_0", "on", 128), ("q4_0", "on", 64), ("f16", "off", 256),
    ("q8_0", "on", 64), ("q4_0", "on", 256), ("f16", "on", 128), ("q8_0", "on", 256), ("q4_0", "on", 128),
)  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_no_shape_raises_an_alarm(device, expected, tmp_path, name):
    """The device computes with the CPU's repacked weights and kernels; the reference with the plain ones."""
    shape = scaled(name, layers=2) if name == "big-vocab" else shallow(name)
    path = str(write_shape(tmp_path / "model.gguf", shape))
    number = list(SHAPES).index(name)
    for i in (0, 1):
        cache, attention, ubatch = COMBINATIONS[(2 * number + i) % len(COMBINATIONS)]
        settings = settings_for(path, cache, n_ctx=2048, n_ubatch=ubatch, n_batch=4 * ubatch, flash_attn=attention)
        assert found_at_load(device, settings, expected(settings), "") == ""
        found = deep_check_child.compared(settings, 1200)
        print(f"\n{name} {cache} {attention} {ubatch}: {found}", flush=True)
        assert "wrong" not in found


def test_logits_of_the_replay_are_numbers(device):
    """Chunks without numbers are not what makes the other replays fail."""
    settings = settings_for(SPARK)
    device.set("")
    loaded = load(device.api, settings, lambda _fraction: True)
    device.set(f"history=28648;ubatch={UBATCH}")
    try:
        batch, logits = Batch(loaded), Logits(loaded)
        batch.add_prompt([5] * 100, 0, 0, last=True)
        assert batch.decode() == 0
        assert np.isfinite(logits.rows(1)).all()
    finally:
        device.set("")
        loaded.close()
