"""/tessera/v1/speech: transcripts for dictation, and the speech model that creates them."""

import msgspec


class SpeechState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/speech: the speech model, and the languages that it understands.

    `installable`: the server can download it, about `download_bytes`. If not, put its files into `path`.
    """

    installed: bool
    model: str
    languages: tuple[str, ...]
    path: str
    download_bytes: int
    installable: bool


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tessera/v1/speech: a recording, in base64: a WAV file, or what an installed ffmpeg reads."""

    sound: bytes


class SpokenSegment(msgspec.Struct, frozen=True, kw_only=True):
    """The words between two times of the recording, in seconds."""

    start: float
    end: float
    text: str


class SpokenText(msgspec.Struct, frozen=True, kw_only=True):
    """The transcript of a recording, and its length in seconds."""

    seconds: float
    segments: tuple[SpokenSegment, ...]
