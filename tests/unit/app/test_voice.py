"""Dictation and reading aloud without a window: final texts, read texts, and the program that reads them."""

import io
import threading
import time
import wave
from dataclasses import dataclass

import psutil
import pytest

from app.settings import BY_NAME
from app.voice.aloud import LANGUAGES, Aloud, NoSpeechService, language_of, mac_voice, parts, spoken_text
from app.voice.dictation import WAV, CannotRecord, LiveTranscript, Microphone, Sound, wav_file
from app.voice.microphone_child import RATE, Opened, level
from tests.support.servers import wait_for

SECOND = b"\0\0" * RATE


@dataclass
class Words:
    start: float
    end: float
    text: str


def test_words_become_final_after_a_pause():
    live = LiveTranscript()
    live.add(2 * SECOND)
    live.sound()
    assert live.take([Words(0.2, 1.9, "ever tried")]) == ("", "ever tried")
    live.add(SECOND)
    live.sound()
    assert live.take([Words(0.2, 1.9, "Ever tried.")]) == ("Ever tried.", "")
    assert live.silent_s == pytest.approx(1.1)


def test_words_before_other_words_are_final_and_are_not_asked_again():
    live = LiveTranscript()
    live.add(4 * SECOND)
    live.sound()
    assert live.take([Words(0, 2, "One."), Words(3, 3.9, "two")]) == ("One.", "two")
    with wave.open(io.BytesIO(live.sound())) as file:
        assert file.getnframes() == 2 * RATE
    assert live.take([Words(1, 1.9, "two three")], last=True) == ("two three", "")
    with wave.open(io.BytesIO(live.sound())) as file:
        assert file.getnframes() == 0


def test_silence_is_counted_and_not_collected():
    live = LiveTranscript()
    for second in range(1, 21):
        live.add(SECOND)
        with wave.open(io.BytesIO(live.sound())) as file:
            assert file.getnframes() <= 2 * RATE
        assert live.take([]) == ("", "")
        assert live.silent_s == pytest.approx(second)
    assert live.heard_s == pytest.approx(20)


def test_sound_that_comes_during_a_transcript_stays():
    live = LiveTranscript()
    live.add(2 * SECOND)
    live.sound()
    live.add(3 * SECOND)
    assert live.new_s == pytest.approx(3)
    live.take([Words(0, 1, "a")])
    assert live.new_s == pytest.approx(3)
    assert live.silent_s == pytest.approx(1)


@pytest.fixture
def tone(tmp_path):
    path = tmp_path / "tone.wav"
    path.write_bytes(wav_file(b"\0\x20" * (RATE // 2)))
    return path


@pytest.mark.process
def test_a_child_plays_a_file_as_a_microphone_does_and_ends_with_its_pipe(tone):
    microphone = Microphone(f"{WAV}{tone}")
    source = iter(microphone)
    assert next(source) == Opened(str(tone))
    heard = [next(source) for _ in range(7)]
    assert all(isinstance(each, Sound) and len(each.samples) == RATE // 5 for each in heard)
    assert heard[0].level == pytest.approx(0.25)
    assert heard[6].level == 0  # after its end the file is silent, like a microphone
    child = psutil.Process(microphone.pid)
    microphone._process.stdin.close()  # as if the window had crashed
    child.wait(60)
    microphone.close()
    with pytest.raises(CannotRecord, match="ended"):
        list(source)


@pytest.mark.process
@pytest.mark.parametrize(
    ("device", "reason"),
    [(f"{WAV}/nowhere.wav", "failed"), ("No such microphone", "unknown_device|no_device|failed")],
)
def test_a_microphone_that_is_not_there(device, reason, monkeypatch):
    monkeypatch.setenv("PULSE_SERVER", "unix:/nonexistent")
    microphone = Microphone(device)
    try:
        with pytest.raises(CannotRecord, match=reason):
            next(iter(microphone))
    finally:
        microphone.close()


def test_level_of_samples():
    assert level(b"") == 0
    assert level(b"\0\x40" * 10) == 0.5


WORDS = {"code": "CODE", "table": "TABLE", "formula": "FORMULA", "image": "IMAGE"}


@pytest.mark.parametrize(
    ("markdown", "spoken"),
    [
        ("# Title\n\nOne **bold** and *soft* word.", "Title.\nOne bold and soft word."),
        ("See [the page](https://example.org/a?b=c).", "See the page."),
        ("At https://www.example.org/a/b?c=1 now", "At example.org now."),
        ("- one\n- two", "one.\ntwo."),
        ("Before\n\n```python\nprint(1)\n```\n\nafter", "Before.\nCODE.\nafter."),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\nafter", "TABLE.\nafter."),
        ("With `x = 1` in it", "With x = 1 in it."),
        ("$$\nx^2\n$$", "FORMULA."),
        ("It costs 5$ or 6$.", "It costs 5$ or 6$."),
        ("![a cat](cat.png) ![](dog.png)", "a cat IMAGE."),
        ("", ""),
    ],
)
def test_what_is_read_of_an_answer(markdown, spoken):
    assert spoken_text(markdown, WORDS.__getitem__) == spoken


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The lamp is on and it is not warm.", "en"),
        ("Die Lampe ist an, und sie wird nicht warm.", "de"),
        ("La lampe est dans la chambre et les portes sont fermées pour vous.", "fr"),
        ("La lámpara no está en el cuarto, pero los niños y las niñas leen.", "es"),
        ("42", "en"),
    ],
)
def test_language_of_a_text(text, language):
    assert language_of(text) == language


def test_the_setting_offers_the_languages_that_are_told_apart():
    assert BY_NAME["voice.language"].choices == ("automatic", *LANGUAGES)


@pytest.mark.parametrize("mark", ["\\[", "\\(", "$$", "$a "])
def test_marks_of_formulas_without_an_end_take_little_time(mark):
    began = time.process_time()
    spoken_text("word " + mark * 30_000, WORDS.__getitem__)
    assert time.process_time() - began < 3


def test_parts_are_whole_sentences_and_lose_nothing():
    text = " ".join(f"This is sentence number {n}." for n in range(100)) + " " + "x" * 1500
    found = list(parts(text))
    assert max(map(len, found)) <= 600
    assert "".join(found).replace(" ", "") == text.replace(" ", "")
    assert all(part.endswith(".") for part in found[:-4])


def test_a_voice_of_macos():
    voices = "Anna                de_DE    # Hallo!\nBad News            en_US    # Hello!\nAlice it_IT # Ciao\n"
    assert mac_voice(voices, "de") == "Anna"
    assert mac_voice(voices, "en") == "Bad News"
    assert mac_voice(voices, "pl") == ""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder that is the whole PATH; returns a function that adds a program, which logs arguments in `read`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(name, script):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec 3>>{tmp_path}/read\necho "$@" >&3\n{script}\n')
        path.chmod(0o755)

    return add


@pytest.mark.process
def test_speech_dispatcher_reads_part_after_part_as_text_and_not_as_options(programs, tmp_path):
    programs("spd-say", "")
    Aloud("--version is the first word of this.\n" + "More. " * 120).read()
    first, *more = (tmp_path / "read").read_text().splitlines()
    assert first.startswith("--application-name Tessera --wait --language en -- --version is the first word")
    assert len(more) == 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("platform", "name", "arguments"),
    [("linux", "espeak-ng", "-v de --stdin"), ("darwin", "say", "-f -"), ("win32", "powershell", "-NoProfile")],
)
def test_the_text_is_the_input_of_programs_that_take_it(programs, tmp_path, platform, name, arguments):
    programs(name, 'while read -r line || [ -n "$line" ]; do echo "text: $line" >&3; done')
    Aloud("Das ist kein $(Befehl) und nicht mehr.", platform=platform).read()
    lines = (tmp_path / "read").read_text().splitlines()
    assert lines[-1] == "text: Das ist kein $(Befehl) und nicht mehr."
    assert lines[-2].startswith(arguments)


@pytest.mark.process
def test_nothing_reads_aloud(programs):
    with pytest.raises(NoSpeechService) as raised:
        Aloud("Text").read()
    assert raised.value.detail == ""
    programs("spd-say", "echo 'Failed to connect to Speech Dispatcher' >&2; exit 1")
    with pytest.raises(NoSpeechService, match="Failed to connect"):
        Aloud("Text").read()


@pytest.mark.process
def test_stop_silences_the_service_and_reads_nothing_more(programs, tmp_path):
    programs("spd-say", '[ "$1" = -S ] || exec /bin/sleep 600')
    aloud = Aloud("One. " * 400, "en")
    reader = threading.Thread(target=aloud.read)
    reader.start()
    wait_for(lambda: (tmp_path / "read").exists() and (tmp_path / "read").read_text(), 60, "the first part")
    aloud.stop()
    reader.join(60)
    assert not reader.is_alive()
    first, second = (tmp_path / "read").read_text().splitlines()
    assert first.endswith("One.")
    assert second == "-S"
