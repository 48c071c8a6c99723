"""What is said while a model loads: a device's compiler is told apart, for it is slow only once."""

import os
from types import SimpleNamespace

import msgspec

from app.generation_phase import GenerationPhase, phase_of, phase_text
from engine.api.chat import ChatChunk
from engine.core.types import PromptProgress
from engine.pool.loaded_model import QueueTicket
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


def test_a_long_wait_on_a_busy_computer_says_so(monkeypatch):
    cores = os.cpu_count()

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
    """The server's processor counts, which may be another computer's than the client's."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    writer = ChunkWriter("chat.completion.chunk", "chatcmpl-1", "m")

    def words(busy):
        line = writer.prefill_progress(PromptProgress(processed=1, prompt_tokens=9, cached_tokens=0, busy=busy))
        chunk = msgspec.json.decode(line.removeprefix(b"data: "), type=ChatChunk)
        return phase_text(phase_of(chunk), 2.0, lambda text: text, str)

    assert words(True) == "Reading your prompt 1 of 9 · 2 s · this computer is busy"
    assert words(False) == "Reading your prompt 1 of 9 · 2 s"
