"""A real sound system: PulseAudio without hardware, whose output is the microphone. Opt-in: it needs programs.

apt-get install pulseaudio pulseaudio-utils speech-dispatcher espeak-ng; then

    python -m pytest tests/optin/test_microphone.py

Last result, 2026-11-26, Debian 12 with PulseAudio 16.1, Speech Dispatcher 0.11.4 and eSpeak NG 1.51:
4 passed. It found that spd-say takes -S, but not --stop.
"""

import os
import shutil
import signal
import subprocess
import threading
import time
import wave

import pytest

from app.voice.aloud import Aloud
from app.voice.dictation import CannotRecord, Microphone, Sound, microphones, wav_file
from app.voice.microphone_child import RATE, Opened
from tests.support.servers import wait_for

NAME = "Monitor of Null Output"
PROGRAMS = ("pulseaudio", "paplay", "pactl")

pytestmark = pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}")


@pytest.fixture(scope="module")
def sound_system(tmp_path_factory):
    """A sound server of its own; what is played there can be recorded."""
    folder = tmp_path_factory.mktemp("pulse")
    folder.chmod(0o700)
    own = {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder), "PULSE_SERVER": f"unix:{folder}/socket"}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    environment = {name: value for name, value in os.environ.items() if name != "PULSE_SERVER"}
    modules = [f"module-native-protocol-unix socket={folder}/socket auth-anonymous=1", "module-null-sink"]
    command = ["pulseaudio", "-n", "--daemonize=no", "--exit-idle-time=-1", "--use-pid-file=no"]
    command += [part for module in modules for part in ("-L", module)]
    server = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    wait_for(lambda: subprocess.run(["pactl", "info"], capture_output=True).returncode == 0, 30, "PulseAudio")
    yield folder
    for file in folder.rglob("speech-dispatcher.pid"):  # spd-say has started it
        os.kill(int(file.read_text()), signal.SIGTERM)
    server.terminate()
    server.wait(30)
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def loudest(source, seconds):
    """The highest level within so many seconds of sound."""
    sounds = [next(source) for _ in range(round(seconds * 10))]
    return max(each.level for each in sounds if isinstance(each, Sound))


@pytest.mark.parametrize("name", ["", NAME])
def test_what_is_played_is_recorded(sound_system, name):
    assert NAME in microphones()
    tone = sound_system / "tone.wav"
    tone.write_bytes(wav_file((b"\0\x20" * 20 + b"\0\xe0" * 20) * (RATE // 40) * 3))
    microphone = Microphone(name)
    try:
        source = iter(microphone)
        assert next(source) == Opened(name)
        assert loudest(source, 0.5) < 0.01
        with wave.open(str(tone)) as file:
            assert file.getframerate() == RATE
        player = subprocess.Popen(["paplay", str(tone)])
        assert loudest(source, 2) == pytest.approx(0.25, abs=0.05)
        player.wait(30)
    finally:
        microphone.close()


def test_a_microphone_that_is_not_connected_is_not_replaced(sound_system):
    microphone = Microphone("Desk")
    try:
        with pytest.raises(CannotRecord, match="unknown_device: Desk"):
            next(iter(microphone))
    finally:
        microphone.close()


@pytest.mark.skipif(not shutil.which("spd-say"), reason="needs spd-say")
def test_the_speech_service_reads_and_is_silent_after_stop(sound_system):
    microphone = Microphone("")
    try:
        source = iter(microphone)
        next(source)
        aloud = Aloud("This is a long sentence that is read aloud, and it goes on for some time. " * 20)
        reader = threading.Thread(target=aloud.read)
        reader.start()
        assert any(loudest(source, 0.5) > 0.01 for _ in range(40))
        aloud.stop()
        reader.join(30)
        assert not reader.is_alive()
        time.sleep(0.5)
        loudest(source, 1.5)  # what the sound server still had
        assert loudest(source, 1) < 0.005
    finally:
        microphone.close()
