"""Texts while a model loads: a device's compiler is named, because it is slow only once."""

import os
from types import SimpleNamespace

import msgspec
import pytest

from app.generation_phase import GenerationPhase, phase_of, phase_text
from engine.api.chat import ChatChunk
from engine.core.types import PromptProgress
from engine.pool.loaded_model import QueueTicket
from engine.runner.llama.sequence import PrefillEstimate
from engine.runner.protocol import COMPILING
from engine.server.openai.stream import ChunkWriter


def told(phase):
    place = QueueTicket()
    place.take(SimpleNamespace(phase=phase, progress=0.5, waiting=0, ready=False))
    line = ChunkWriter("chat.completion.chunk", "chatcmpl-1", "m").load_progress(place)
    chunk = msgspec.json.decode(line.removeprefix(b"data: "), type=ChatChunk)
    return phase_text(phase_of(chunk), 0.1, lambda text: text, str)


def test_the_compiler_of_a_device_is_told_apart_from_reading_weights():
    assert told("weights") == "Starting the model 50 %"
    assert told(COMPILING) == "Compiling the model for its device 50 % (the first time only)"


def test_a_long_wait_on_a_busy_computer_says_so(monkeypatch, tmp_path):
    cores = os.cpu_count()
    monkeypatch.setattr("devices.host._LOADAVG", tmp_path / "none")  # only the average decides

    def words(seconds):
        return phase_text(GenerationPhase("reading", 1, 9), seconds, lambda text: text, str)

    monkeypatch.setattr(os, "getloadavg", lambda: (2 * cores, 0.0, 0.0))
    assert words(4.0) == "Reading your prompt 1 of 9 · 4 s · this computer is busy"
    assert "busy" not in words(2.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (float(cores), 0.0, 0.0))
    assert "busy" not in words(4.0)
    monkeypatch.delattr(os, "getloadavg")
    assert "busy" not in words(4.0)


def test_a_server_on_a_busy_computer_says_so_while_it_reads(monkeypatch):
    """The server's CPU counts, which may be in a different computer from the client's."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    writer = ChunkWriter("chat.completion.chunk", "chatcmpl-1", "m")

    def words(busy):
        line = writer.prefill_progress(PromptProgress(processed=1, prompt_tokens=9, cached_tokens=0, busy=busy))
        chunk = msgspec.json.decode(line.removeprefix(b"data: "), type=ChatChunk)
        return phase_text(phase_of(chunk), 2.0, lambda text: text, str)

    assert words(True) == "Reading your prompt 1 of 9 · 2 s · this computer is busy"
    assert words(False) == "Reading your prompt 1 of 9 · 2 s"


def test_the_rest_of_a_long_prompt_is_estimated():
    writer = ChunkWriter("chat.completion.chunk", "chatcmpl-1", "m")

    def words(left_s):
        progress = PromptProgress(processed=1, prompt_tokens=9, cached_tokens=0, left_s=left_s, busy=True)
        chunk = msgspec.json.decode(writer.prefill_progress(progress).removeprefix(b"data: "), type=ChatChunk)
        return phase_text(phase_of(chunk), 2.0, lambda text: text, str).split(" · ")[2]

    assert words(0.0) == words(1.9) == "this computer is busy"
    assert words(14.6) == "about 15 s left"
    assert words(130.0) == "about 2 min left"


@pytest.mark.parametrize("slope", [0.0, 1e-7, 1e-5])
@pytest.mark.parametrize("cached", [0, 20_000])
def test_the_estimate_knows_that_deep_tokens_take_longer(slope, cached):
    """The estimate is exact if each token takes exactly 1 ms, and `slope` more for each token before it."""
    total = 60_000

    def seconds(tokens):
        return tokens / 1000 + slope * tokens**2 / 2

    estimate = PrefillEstimate()
    assert estimate.left_s(cached, total, seconds(cached)) == 0.0
    for done in range(cached + 1000, total, 1000):
        left = estimate.left_s(done, total, seconds(done))
        if done >= cached + 2000:
            assert left == pytest.approx(seconds(total) - seconds(done), rel=0.02)


def test_a_prompt_that_gave_way_is_estimated_from_where_it_goes_on():
    estimate = PrefillEstimate()
    estimate.left_s(1000, 4000, 1.0)
    assert estimate.left_s(2000, 4000, 2.0) == 2.0
    assert estimate.left_s(500, 4000, 9.0) == 0.0
    assert estimate.left_s(1500, 4000, 10.0) == 2.5
