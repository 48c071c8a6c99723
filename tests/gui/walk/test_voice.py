"""Dictation and reading aloud by clicks: a real child, a real server, a speech model created by the test."""

import os

import pytest

from app.voice.dictation import WAV, wav_file
from app.voice.microphone_child import RATE
from tests.support.models.tiny_speech import loudness_detector, tiny_speech

VOICE = "chat.voice"


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """Where the speech model will be."""
    return tmp_path_factory.mktemp("speech") / "model"


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """The texts that the desktop's speech service got to read."""
    return tmp_path_factory.mktemp("read") / "read"


@pytest.fixture(scope="module")
def walk(open_window, speech, read, tmp_path_factory):
    home = tmp_path_factory.mktemp("walk")
    sound = home / "sound.wav"
    sound.write_bytes(wav_file((b"\0\x20" * RATE + b"\0\0" * RATE) * 60))
    (home / "config").mkdir()
    (home / "config" / "settings.toml").write_text(f'[voice]\ndevice = "{WAV}{sound}"\n')
    service = read.parent / "spd-say"
    service.write_text(f'#!/bin/sh\necho "$@" >> {read}\n[ "$1" = -S ] || exec sleep 600\n')
    service.chmod(0o755)
    path = os.pathsep.join([str(read.parent), os.environ["PATH"]])
    return open_window(
        {"TESSERA_SPEECH": str(speech), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PATH": path}, home=home
    )


def test_without_the_model_its_download_is_offered(walk):
    walk.click("Dictate", "chat")
    walk.click("Download the speech model", "chat")
    walk.until("'could not be downloaded' in chat.banner.text")
    walk.click("Download it again", "chat")
    walk.until("'could not be downloaded' in chat.banner.text")
    assert walk.ask(f"{VOICE}.dictation.recording") is False


def test_speech_becomes_text_while_the_sign_is_there(walk, speech):
    speech.mkdir(exist_ok=True)
    tiny_speech(speech, 12)
    loudness_detector(speech / "silero_vad.onnx")
    walk.click("Dictate", "chat")
    walk.until(f"{VOICE}.dictation.sign.isVisible() and {VOICE}.dictation.sign.meter.level > 0")
    walk.until("chat.composer.text != ''")
    walk.picture("dictation")
    walk.click("Choose the microphone", "chat")
    walk.until("app.activePopupWidget() is not None")
    walk.key("Escape")
    walk.until("app.activePopupWidget() is None")
    walk.click("Stop dictation", "chat")
    walk.until(f"not {VOICE}.dictation.active and not {VOICE}.dictation.sign.isVisible()")
    assert walk.ask("len(chat.controller.tree)") == 0  # nothing was sent
    walk.key("ctrl+shift+d")
    walk.until(f"{VOICE}.dictation.recording")
    walk.click("Stop the dictation", "chat")
    walk.until(f"not {VOICE}.dictation.active")
    words = walk.ask("chat.composer.text")
    walk.key("ctrl+shift+d")
    walk.until(f"{VOICE}.dictation.recording and chat.composer.text != {words!r}")
    walk.go("Settings")
    walk.until(f"not {VOICE}.dictation.recording")
    walk.go("Chat")
    walk.click("Message", "chat")
    walk.key("ctrl+a", "Delete")
    walk.until("chat.composer.text == ''")


def test_an_answer_is_read_aloud(walk, read):
    walk.new_chat()
    walk.say("What is Tessera?")
    item = "chat.transcript.item(chat.controller.tree.leaf_id)"
    walk.click("Read aloud", item)
    walk.until(f"{VOICE}.reading.sign.isVisible()")
    walk.click("Stop reading", "chat")
    walk.until(f"not {VOICE}.reading.active")
    walk.click("Read aloud", item)
    walk.until(f"{VOICE}.reading.active")
    walk.click("Stop reading aloud", item)
    walk.until(f"not {VOICE}.reading.active")
    walk.key("ctrl+shift+l")
    walk.until(f"{VOICE}.reading.active")
    walk.key("Escape")
    walk.until(f"not {VOICE}.reading.active")
    walk.key("ctrl+shift+l")
    walk.until(f"{VOICE}.reading.active")
    walk.go("Settings")
    walk.until(f"not {VOICE}.reading.active")
    walk.go("Chat")
    walk.until(f"not {VOICE}.reading.sign.isVisible()")
    assert "--wait --language" in read.read_text()
