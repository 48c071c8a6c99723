"""Messages between the server and the child that reads recordings: one msgpack frame each way."""

import msgspec


class DetectSpeech(msgspec.Struct, frozen=True, kw_only=True, tag="detect_speech"):
    """Read a recording; `folder` has the models. The reply is `SpeechSegments`.

    `provider` runs graphs of fixed shapes (empty: the CPU); its compiled graphs are cached below `cache`. All
    recordings but this one and those in `open_recordings` are deleted.
    """

    recording: int
    open_recordings: tuple[int, ...]
    sound: bytes
    folder: str
    provider: str = ""
    cache: str = ""


class Transcribe(msgspec.Struct, frozen=True, kw_only=True, tag="transcribe"):
    """Transcribe a segment of a recording. The reply is `Transcript`."""

    recording: int
    first_s: float
    last_s: float


class SpeechSegments(msgspec.Struct, frozen=True, kw_only=True, tag="speech_segments"):
    """Length of the recording and its speech segments: start, end (seconds) and probability (0 to 1).

    `notes` describe the placement of the model's operators if it is not the CPU.
    """

    seconds: float
    segments: tuple[tuple[float, float, float], ...]
    notes: tuple[str, ...] = ()


class Transcript(msgspec.Struct, frozen=True, kw_only=True, tag="transcript"):
    """The text of a segment, its tokens, and the mean of their log probabilities (nats)."""

    text: str
    tokens: tuple[int, ...] = ()
    mean_logprob: float = 0.0


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request failed. `sound`: because of the recording; `model`: because of the model's files.

    `unknown`: this process has not read the recording; the one that had read it ended.
    """

    message: str
    unknown: bool = False
    sound: bool = False
    model: bool = False


Request = DetectSpeech | Transcribe
Answer = SpeechSegments | Transcript | Refused
