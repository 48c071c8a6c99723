"""Recordings as text, with the real speech model and the recording of a person that is included with it."""

import io
import shutil
import struct
import sys
import wave
import zipfile
from pathlib import Path

import httpx2
import msgspec
import numpy as np
import psutil
import pytest

from app.voice.dictation import LiveTranscript
from engine.api.speech import SpeechRequest, SpokenText
from engine.runner.onnx.speech.audio import RATE, BadSound, read_sound, resampled
from engine.runner.onnx.speech.child import WINDOW, speech
from installers.bootstrap import kernels
from installers.bootstrap import model as fetched
from installers.bootstrap import speech as files
from tests.support.late import openai
from tests.support.servers import ROOT, RunningServer, wait_for

pytestmark = pytest.mark.timeout(900)  # servers start and a model is converted, on a busy computer
LOCK = str(ROOT / "installers" / "lock" / "speech.txt")
SAID = "ever tried, ever failed, no matter, try again, fail again, fail better."


@pytest.fixture(scope="module")
def wheels():
    folder = Path(kernels.cache_folder()).parent / "speech"
    if len(list(folder.glob("*.whl"))) < 2:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            fetched.download(sys.executable, LOCK, str(folder), None, files.ANY_SYSTEM)
        except RuntimeError as error:
            pytest.skip(f"the speech model is not here and cannot be fetched: {error}")
    return folder


@pytest.fixture(scope="module")
def beckett(wheels):
    [wheel] = wheels.glob("moonshine_voice-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read("moonshine_voice/assets/beckett.wav")


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    return files.fetch("unused", LOCK, str(tmp_path_factory.mktemp("venv")), str(wheels))


@pytest.fixture(scope="module")
def server(installed, tmp_path_factory):
    running = RunningServer(tmp_path_factory.mktemp("speech"), env={"TESSERA_SPEECH": installed})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def transcribed(client, sound, **options):
    return client.audio.transcriptions.create(model="whisper-1", file=("a.wav", sound), **options)


def as_wave(samples, rate, *, channels=1, bits=16):
    kinds = {16: "<i2", 32: "<i4"}
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((channels, bits // 8, rate, 0, "NONE", ""))
        scaled = np.repeat((samples * ((1 << (bits - 1)) - 1)).astype(kinds[bits]), channels)
        file.writeframes(scaled.tobytes())
    return out.getvalue()


def test_every_form_of_an_answer(client, beckett):
    assert transcribed(client, beckett).text.lower() == SAID
    assert transcribed(client, beckett, response_format="text").strip().lower() == SAID
    srt = transcribed(client, beckett, response_format="srt").splitlines()
    assert (srt[0], srt[1][:8], srt[1][12:17], srt[2].lower()) == ("1", "00:00:00", " --> ", SAID)
    assert transcribed(client, beckett, response_format="vtt").startswith("WEBVTT\n\n00:00:00.")
    whole = transcribed(client, beckett, response_format="verbose_json", timestamp_granularities=["segment"])
    assert (whole.language, round(whole.duration, 2)) == ("english", 9.96)
    [segment] = whole.segments
    assert 0 <= segment.start < 0.5
    assert 8.5 < segment.end <= whole.duration
    assert -0.5 < segment.avg_logprob < 0
    assert len(segment.tokens) > 10


TWO_CITIES = "it was the best of times. it was the worst of times. it was the age of wisdom."


@pytest.fixture(scope="module")
def two_cities(wheels):
    [wheel] = wheels.glob("moonshine_voice-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        recorded = archive.read("moonshine_voice/assets/two_cities.wav")
    with wave.open(io.BytesIO(recorded)) as file:
        out, rate = io.BytesIO(), file.getframerate()
        with wave.open(out, "wb") as shorter:
            shorter.setparams(file.getparams())
            shorter.writeframes(file.readframes(20 * rate))  # longer than the model's maximum
    return out.getvalue()


def test_fixed_shapes_for_an_npu_hear_the_same(client, server, beckett, two_cities, tmp_path):
    """Converted over HTTP; then a server with only that folder transcribes both recordings."""
    out = tmp_path / "npu"
    owner = {"authorization": f"Bearer {server.token}"}
    told = httpx2.post(
        f"{server.url}/tessera/v1/onnx/convert",
        json={"source": "speech", "out": str(out), "fixed": {"seconds": 12}},
        headers=owner,
        timeout=300,
    ).json()
    assert told["kind"] == "convert"
    job = f"{server.url}/tessera/v1/jobs/{told['id']}"
    wait_for(lambda: httpx2.get(job, headers=owner).json()["state"] not in {"queued", "running"}, 400, "its end")
    assert httpx2.get(job, headers=owner).json()["state"] == "done"
    whole = transcribed(client, two_cities).text
    (tmp_path / "home").mkdir()
    running = RunningServer(tmp_path / "home", env={"TESSERA_SPEECH": str(out)})
    try:
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0) as fixed:
            assert transcribed(fixed, beckett).text.lower() == SAID
            heard = transcribed(fixed, two_cities).text
    finally:
        running.stop()
    assert heard == whole
    assert heard.lower().startswith(TWO_CITIES)


def test_words_while_somebody_speaks(server, beckett):
    """As the window requests it: words of the first seconds may change, and after the pause they are final."""
    owner = {"authorization": f"Bearer {server.token}"}
    assert httpx2.get(f"{server.url}/tessera/v1/speech", headers=owner).json()["installed"]
    live, found = LiveTranscript(), []
    with wave.open(io.BytesIO(beckett)) as file:
        samples = file.readframes(file.getnframes())
    half = len(samples) // 4 * 2
    for new in (samples[:half], samples[half:] + b"\0" * 2 * RATE):
        live.add(new)
        body = msgspec.json.encode(SpeechRequest(sound=live.sound()))
        answer = httpx2.post(f"{server.url}/tessera/v1/speech", content=body, headers=owner, timeout=300)
        found.append(live.take(msgspec.json.decode(answer.content, type=SpokenText).segments))
    (none, begun), (final, rest) = found
    assert (none, rest) == ("", "")
    assert begun.lower().startswith("ever tried")
    assert final.lower() == SAID


def test_a_device_without_a_form_of_the_model_is_told(installed, beckett, tmp_path):
    env = {"TESSERA_SPEECH": installed, "TESSERA_SPEECH_DEVICE": "qnn"}
    running = RunningServer(tmp_path, env=env)
    try:
        answer = httpx2.post(
            f"{running.url}/v1/audio/transcriptions",
            files={"file": ("a.wav", beckett)},
            data={"model": "whisper-1"},
            timeout=300,
        )
        assert "tessera onnx convert speech --fixed" in answer.json()["error"]["message"]
    finally:
        running.stop()


def test_a_stream_tells_each_piece_and_then_all(client, beckett):
    pause = struct.pack("<h", 0) * (RATE * 2)
    with wave.open(io.BytesIO(beckett)) as file:
        frames = file.readframes(file.getnframes())
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(frames + pause + frames)
    twice = out.getvalue()
    events = list(transcribed(client, twice, stream=True))
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert len(deltas) == 2
    assert "".join(deltas) == events[-1].text
    assert events[-1].text.lower() == f"{SAID} {SAID}"


def test_what_cannot_be_done_is_refused_by_name(client, beckett):
    for options, param in (
        ({"language": "de"}, "language"),
        ({"timestamp_granularities": ["word"], "response_format": "verbose_json"}, "timestamp_granularities"),
        ({"stream": True, "response_format": "srt"}, "response_format"),
        ({"include": ["logprobs"]}, "include"),
        ({"temperature": 7}, "temperature"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            transcribed(client, beckett, **options)
        assert refused.value.body["param"] == param
    raw = client.audio.transcriptions.with_raw_response.create(
        model="whisper-1", file=("a.wav", beckett), prompt="Names: Beckett", temperature=0.5
    )
    assert raw.headers["x-tessera-ignored"] == "prompt, temperature"
    form = {"files": {"file": beckett}, "data": {"model": "whisper-1"}}
    answer = httpx2.post(f"{client.base_url}audio/translations", **form)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_supported")


GARBAGE = (
    b"",
    b"RIFF",
    b"RIFF\0\0\0\0WAVE",
    b"hello",
    b"RIFF\xff\xff\xff\xffWAVEfmt \xff\xff\xff\x7f" + b"\0" * 40,
)


def test_garbage_is_refused_and_the_next_recording_is_heard(client, beckett):
    for sound in GARBAGE:
        with pytest.raises(openai.BadRequestError) as refused:
            transcribed(client, sound)
        assert refused.value.body["param"] == "file", sound
    assert transcribed(client, beckett).text.lower() == SAID


def test_silence_says_nothing(client):
    assert transcribed(client, as_wave(np.zeros(RATE * 3), RATE)).text == ""


def said_by(process):
    """Its command; empty when it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def has_ended(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_child_that_is_killed_is_told_and_replaced(client, server, beckett):
    transcribed(client, beckett)
    children = psutil.Process(server.process.pid).children(recursive=True)
    [child] = [c for c in children if "engine.runner.onnx.speech.child" in said_by(c)]
    child.kill()
    wait_for(lambda: has_ended(child), 60, "its end")
    assert transcribed(client, beckett).text.lower() == SAID


def test_forms_of_pages_without_an_origin_are_refused(server):
    answer = httpx2.post(
        f"{server.url}/v1/audio/transcriptions",
        files={"file": b"x"},
        data={"model": "whisper-1"},
        headers={"referer": "http://evil.example/"},
    )
    assert answer.status_code == 415


def test_without_the_model_the_way_to_it_is_told(tmp_path):
    running = RunningServer(tmp_path, env={"TESSERA_SPEECH": str(tmp_path / "none")})
    try:
        answer = httpx2.post(
            f"{running.url}/v1/audio/transcriptions", files={"file": b"x"}, data={"model": "default"}, timeout=300
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_supported")
        assert "start.py speech" in answer.json()["error"]["message"]
    finally:
        running.stop()


@pytest.mark.parametrize(("rate", "channels", "bits"), [(8000, 1, 16), (44_100, 2, 16), (48_000, 1, 32)])
def test_a_tone_keeps_its_pitch_and_loudness(rate, channels, bits):
    seconds = 50
    tone = np.sin(2 * np.pi * 440 * np.arange(rate * seconds) / rate) / 2
    found = read_sound(as_wave(tone, rate, channels=channels, bits=bits))
    assert abs(len(found) - RATE * seconds) <= 2
    wanted = np.sin(2 * np.pi * 440 * np.arange(len(found)) / RATE) / 2
    assert np.abs(found - wanted)[RATE // 10 : -RATE // 10].max() < 0.002  # also at the borders of blocks


def test_what_is_above_half_the_rate_is_cut_off():
    high = np.sin(2 * np.pi * 12_000 * np.arange(48_000 * 3) / 48_000).astype(np.float32)
    assert np.abs(resampled(high, 48_000))[2000:-2000].max() < 0.01


@pytest.mark.skipif(shutil.which("ffmpeg") is not None, reason="ffmpeg reads other kinds here")
def test_other_kinds_need_ffmpeg():
    with pytest.raises(BadSound, match="install ffmpeg"):
        read_sound(b"OggS" + b"\0" * 100)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
def test_ffmpeg_reads_other_kinds_and_says_why_not(beckett, tmp_path):
    import subprocess

    (tmp_path / "a.wav").write_bytes(beckett)
    subprocess.run(["ffmpeg", "-v", "error", "-i", "a.wav", "-y", "a.flac"], cwd=tmp_path, check=True)
    found = read_sound((tmp_path / "a.flac").read_bytes())
    assert np.abs(found - read_sound(beckett)).max() < 1e-3
    with pytest.raises(BadSound, match="ffmpeg cannot read it"):
        read_sound(b"OggS" + b"\0" * 100)


def test_long_speech_is_cut_where_it_is_least_likely():
    seconds = 60
    chances = [0.9] * (seconds * RATE // WINDOW)
    quietest = 22 * RATE // WINDOW
    chances[quietest] = 0.6
    pieces = speech(chances, seconds * RATE)
    assert abs(pieces[0][1] - 22 * RATE) < RATE
    assert all(last - first <= 25 * RATE for first, last in pieces)
    assert pieces[-1][1] == seconds * RATE
