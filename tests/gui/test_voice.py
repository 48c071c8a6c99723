"""Dictation and reading aloud in the window: a real child plays a file as a microphone, the test sets the words."""

import base64
import io
import wave
from contextlib import suppress

import psutil
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton

from app.gui.chat import voice
from app.gui.chat.message_widget import MessageWidget
from app.gui.code.page import CodePage
from app.voice.dictation import WAV, wav_file
from app.voice.microphone_child import RATE
from devices import distribution
from engine.api.jobs import Job, JobKind, Progress
from engine.api.speech import SpeechState, SpokenSegment, SpokenText
from tests.gui.fake_server import Events

INSTALLED = SpeechState(
    installed=True, model="m", languages=("en",), path="/speech", download_bytes=80_000_000, installable=True
)


def state(**changes):
    return SpeechState(**{name: getattr(INSTALLED, name) for name in INSTALLED.__struct_fields__} | changes)


def children():
    """The processes that record."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "app.voice.microphone_child" in one.cmdline():
                found.append(one)
    return found


def click(widget, name=""):
    """A click on this button, or on the visible one with that name in it."""
    if name:
        buttons = [each for each in widget.findChildren(QAbstractButton) if each.isVisible()]
        widget = next(each for each in buttons if name in {each.text(), each.accessibleName()})
    QTest.mouseClick(widget, Qt.MouseButton.LeftButton)


@pytest.fixture
def tone(tmp_path):
    path = tmp_path / "tone.wav"
    path.write_bytes(wav_file(b"\0\x20" * RATE * 60))
    return path


class Listener:
    """The server's speech model: recognizes one word per second of sound, and records each sound's length."""

    def __init__(self, server):
        self.seconds = []
        self.silent = False
        server.routes["GET", "/tessera/v1/speech"] = INSTALLED
        server.routes["POST", "/tessera/v1/speech"] = self.hear

    def hear(self, body):
        with wave.open(io.BytesIO(base64.b64decode(body["sound"]))) as file:
            seconds = file.getnframes() / file.getframerate()
        self.seconds.append(seconds)
        words = " ".join(f"word{n}" for n in range(1, int(seconds) + 1))
        found = () if self.silent else (SpokenSegment(start=0.0, end=seconds, text=words),)
        return SpokenText(seconds=seconds, segments=found)


@pytest.fixture
def listener(server):
    return Listener(server)


@pytest.fixture
def dictation(page, listener, services, tone):
    services.settings.set(voice.DEVICE, f"{WAV}{tone}")
    return page.voice.dictation


def test_words_appear_while_somebody_speaks_and_are_never_sent(qtbot, page, dictation, listener, server):
    page.composer.set_text("Question:")
    page.composer.editor.moveCursor(page.composer.editor.textCursor().MoveOperation.End)
    click(dictation.button)
    qtbot.waitUntil(lambda: dictation.recording)
    assert dictation.sign.isVisible()
    assert dictation.sign.stop.isVisible()
    qtbot.waitUntil(lambda: page.composer.text == "Question: word1 word2")
    assert dictation.sign.meter.level > 0.5
    assert len(children()) == 1
    QTest.keyClicks(page.composer.editor, " typed")  # the user may write meanwhile
    click(dictation.sign.stop)
    assert not dictation.recording
    qtbot.waitUntil(lambda: not dictation.active)
    qtbot.waitUntil(lambda: not children())
    assert page.composer.text.startswith("Question: word1 word2")
    assert page.composer.text.endswith(" typed")
    assert not dictation.sign.isVisible()
    assert server.bodies == []
    assert page.composer.editor.hasFocus()
    assert listener.seconds == sorted(listener.seconds)  # nothing was final: everything is transcribed again


def test_stop_before_the_first_sound_is_no_fault(qtbot, page, dictation, listener):
    click(dictation.button)
    qtbot.waitUntil(lambda: dictation.recording)
    dictation.stop()
    assert not dictation.active
    assert listener.seconds == []
    assert not page.banner.isVisible()
    qtbot.waitUntil(lambda: not children())


def test_words_that_the_user_has_changed_stay_so(qtbot, page, dictation, listener):
    click(dictation.button)
    qtbot.waitUntil(lambda: page.composer.text == "word1")
    QTest.keyClick(page.composer.editor, Qt.Key.Key_Backspace)
    QTest.keyClick(page.composer.editor, Qt.Key.Key_Backspace)
    heard = len(listener.seconds)
    qtbot.waitUntil(lambda: len(listener.seconds) > heard + 1 and "word1" in page.composer.text[3:])
    dictation.cancel()
    assert page.composer.text.startswith("wor word1")  # the second one is of later sound
    qtbot.waitUntil(lambda: not children())


@pytest.mark.parametrize("how", ["hide", "minimize", "close", "another page"])
def test_nothing_is_recorded_while_the_sign_cannot_be_seen(qtbot, page, dictation, how):
    click(dictation.button)
    qtbot.waitUntil(lambda: bool(children()))
    qtbot.waitUntil(lambda: "word1" in page.composer.text)
    {
        "hide": page.hide,
        "minimize": page.showMinimized,
        "close": page.close,
        "another page": page.composer.hide,
    }[how]()
    qtbot.waitUntil(lambda: not dictation.recording)
    qtbot.waitUntil(lambda: not children())
    qtbot.waitUntil(lambda: not dictation.active)
    assert "word1" in page.composer.text


def test_it_does_not_begin_unseen(qtbot, page, dictation, listener, server):
    asked = [True]
    server.routes["GET", "/tessera/v1/speech"] = lambda _: asked.append(True) or INSTALLED
    click(dictation.button)
    page.hide()
    qtbot.waitUntil(lambda: len(asked) == 2)
    qtbot.wait(100)
    assert not dictation.active
    assert not children()


def test_a_sent_message_ends_the_dictation(qtbot, page, dictation, server):
    click(dictation.button)
    qtbot.waitUntil(lambda: "word1" in page.composer.text)
    QTest.keyClick(page.composer.editor, Qt.Key.Key_Return)
    assert not dictation.active
    qtbot.waitUntil(lambda: bool(server.bodies) and not page.controller.busy)
    assert server.bodies[0]["messages"][-1]["content"].startswith("word1")
    qtbot.waitUntil(lambda: not children())
    assert page.composer.text == ""


def test_another_chat_gets_no_word_of_it(qtbot, page, dictation):
    click(dictation.button)
    qtbot.waitUntil(lambda: "word1" in page.composer.text)
    page.new_chat()
    page.composer.set_text("")
    assert not dictation.active
    qtbot.waitUntil(lambda: not children())
    assert page.composer.text == ""


def test_dictation_writes_the_question_of_the_code_page(qtbot, show, services, listener, tone, server, tmp_path):
    services.settings.set(voice.DEVICE, f"{WAV}{tone}")
    project = tmp_path / "project"
    project.mkdir()
    (project / "lamp.py").write_text("LIT = True\n")
    code = show(CodePage(services))
    with qtbot.waitSignal(code.controller.opened):
        code.open_folder(project)
    click(code.dictation.button)
    qtbot.waitUntil(lambda: "word1" in code.composer.text)
    other = tmp_path / "other"
    other.mkdir()
    with qtbot.waitSignal(code.controller.opened):
        code.open_folder(other)  # the dictated text belongs to the project in which it was started
    assert not code.dictation.active
    qtbot.waitUntil(lambda: not children())
    assert server.bodies == []
    code.controller.close_project()


def test_silence_and_the_longest_time_end_it(qtbot, page, dictation, listener, monkeypatch):
    listener.silent = True
    monkeypatch.setattr(voice, "SILENCE_S", 1.5)
    click(dictation.button)
    qtbot.waitUntil(lambda: "no word was heard" in page.banner.text and not dictation.active)
    listener.silent = False
    monkeypatch.setattr(voice, "LONGEST_S", 1.5)
    click(dictation.button)
    qtbot.waitUntil(lambda: "Dictation ended after" in page.banner.text and not dictation.active)
    assert "word1" in page.composer.text
    qtbot.waitUntil(lambda: not children())


def test_the_escape_key_stops_the_dictation_and_then_the_answer(qtbot, page, dictation):
    click(dictation.button)
    qtbot.waitUntil(lambda: dictation.recording)
    page.stop_answer()
    assert not dictation.recording
    qtbot.waitUntil(lambda: not dictation.active)


def test_a_missing_model_is_offered_and_downloaded(qtbot, page, listener, server, services, tone):
    server.routes["GET", "/tessera/v1/speech"] = state(installed=False)
    job = {"kind": JobKind.FETCH, "title": "m", "created_at": 1.0, "updated_at": 1.0}
    running = Job(id="1", state="running", progress=Progress(done=40_000_000, total=80_000_000), **job)
    server.routes["POST", "/tessera/v1/speech/model"] = running
    server.routes["GET", "/tessera/v1/jobs/1/events"] = Events([running, Job(id="1", state="done", **job)])
    click(page.voice.dictation.button)
    qtbot.waitUntil(lambda: "needs the speech model" in page.banner.text)
    assert "76.3 MiB" in page.banner.text
    click(page.banner, "Download the speech model")
    qtbot.waitUntil(lambda: "is here" in page.banner.text)
    assert not children()
    server.routes["GET", "/tessera/v1/speech"] = state()
    services.settings.set(voice.DEVICE, f"{WAV}{tone}")
    click(page.banner, "Start dictation")
    qtbot.waitUntil(lambda: page.voice.dictation.recording)
    page.voice.dictation.cancel()
    qtbot.waitUntil(lambda: not children())


@pytest.mark.parametrize(
    ("changes", "offline", "words"),
    [
        ({"installed": False, "installable": False}, False, "cannot download"),
        ({"installed": False}, True, "offline mode is on"),
    ],
)
def test_a_missing_model_that_cannot_be_downloaded(
    qtbot, page, listener, server, services, changes, offline, words
):
    server.routes["GET", "/tessera/v1/speech"] = state(**changes)
    services.settings.set("network.offline", offline)
    click(page.voice.dictation.button)
    qtbot.waitUntil(lambda: words in page.banner.text and "/speech" in page.banner.text)


def test_a_microphone_that_is_gone_is_named(qtbot, page, dictation, services):
    services.settings.set(voice.DEVICE, f"{WAV}/nowhere.wav")
    click(dictation.button)
    qtbot.waitUntil(lambda: "cannot be opened" in page.banner.text)
    assert not dictation.active
    assert not dictation.sign.isVisible()


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("no_library", "miniaudio is missing"),
        ("no_device", "No microphone was found"),
        ("unknown_device", "The microphone Desk is not connected"),
        ("ended", "no longer sends sound"),
    ],
)
def test_each_fault_says_what_to_do(page, server, dictation, services, reason, words):
    services.settings.set(voice.DEVICE, "Desk")
    dictation._on_no_microphone(voice.CannotRecord(reason))
    assert words in page.banner.text
    if reason == "unknown_device":
        server.routes["GET", "/tessera/v1/speech"] = state(installed=False)
        click(page.banner, "Use the system's microphone")
        assert services.settings.now.text(voice.DEVICE) == ""


def test_a_server_that_fails_ends_it_and_what_was_heard_stays(qtbot, page, dictation, server):
    click(dictation.button)
    qtbot.waitUntil(lambda: "word1" in page.composer.text)
    server.routes["POST", "/tessera/v1/speech"] = (503, None)
    qtbot.waitUntil(lambda: not dictation.active)
    qtbot.waitUntil(lambda: not children())
    assert "word1" in page.composer.text
    assert page.banner.isVisible()


def test_the_setting_takes_the_buttons_away(qtbot, page, dictation, services):
    click(dictation.button)
    qtbot.waitUntil(lambda: dictation.recording)
    services.settings.set(voice.ENABLED, False)
    assert not dictation.active
    assert not dictation.button.isVisible()
    qtbot.waitUntil(lambda: not children())
    services.settings.set(voice.ENABLED, True)
    assert dictation.button.isVisible()


@pytest.fixture
def speaker(tmp_path, monkeypatch):
    """The desktop's speech service: records the texts it reads, until it is stopped."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "spd-say"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/read\n[ "$1" = -S ] || exec /bin/sleep 600\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return tmp_path / "read"


def read_of(path):
    return path.read_text().splitlines() if path.exists() else []


def answered(qtbot, page, server, answer):
    server.pieces = [answer]
    page.composer.set_text("Question")
    page.composer.send()
    qtbot.waitUntil(lambda: bool(page.controller.tree.path()) and not page.controller.busy)
    last = page.controller.tree.path()[-1].id
    qtbot.waitUntil(lambda: page.transcript.pane(last) is not None)
    return page.transcript.pane(last)


def test_an_answer_is_read_aloud_until_stop(qtbot, page, server, speaker):
    pane = answered(qtbot, page, server, "Das ist **eine** Antwort und nicht mehr.")
    click(pane, "Read aloud")
    qtbot.waitUntil(lambda: len(read_of(speaker)) == 1)
    assert read_of(speaker)[0].endswith("--language de -- Das ist eine Antwort und nicht mehr.")
    assert page.voice.reading.sign.isVisible()
    click(page.voice.reading.sign, "Stop reading")
    qtbot.waitUntil(lambda: read_of(speaker)[1:] == ["-S"])
    assert not page.voice.reading.active
    assert not page.voice.reading.sign.isVisible()
    click(pane, "Read aloud")
    qtbot.waitUntil(lambda: len(read_of(speaker)) == 3)
    click(pane, "Stop reading aloud")
    qtbot.waitUntil(lambda: len(read_of(speaker)) == 4)
    assert not page.voice.reading.active
    click(pane, "Read aloud")
    qtbot.waitUntil(lambda: len(read_of(speaker)) == 5)
    page.hide()  # another page is shown: nothing there could stop it
    qtbot.waitUntil(lambda: len(read_of(speaker)) == 6)
    assert not page.voice.reading.active


def test_dictation_ends_the_reading_which_it_would_hear(qtbot, page, server, speaker, dictation):
    pane = answered(qtbot, page, server, "An answer.")
    click(pane, "Read aloud")
    qtbot.waitUntil(lambda: len(read_of(speaker)) == 1)
    click(dictation.button)
    assert not page.voice.reading.active
    qtbot.waitUntil(lambda: dictation.recording)
    dictation.cancel()
    qtbot.waitUntil(lambda: not children())


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ("ID=ubuntu", "Run sudo apt install speech-dispatcher espeak-ng, then press the button again."),
        ("ID=fedora", "Run sudo dnf install speech-dispatcher espeak-ng, then press the button again."),
        ("ID=void", "Install espeak-ng, then press the button again."),
    ],
)
def test_no_speech_service_and_no_button_where_it_is_off(
    qtbot, page, server, services, tmp_path, monkeypatch, release, words
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(distribution, "distribution", lambda _host: distribution.parsed(release, is_ostree=False))
    pane = answered(qtbot, page, server, "An answer.")
    click(pane, "Read aloud")
    qtbot.waitUntil(lambda: f"No program on this computer reads aloud. {words}" in page.banner.text)
    assert not page.voice.reading.active
    services.settings.set(voice.ENABLED, False)
    shown = [w for pane in page.findChildren(MessageWidget) if (w := pane._voice) is not None and w.isVisible()]
    assert shown == []
