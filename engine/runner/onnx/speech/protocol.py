"""What the server and the child that reads recordings say to each other: one msgpack frame each way."""

import msgspec


class DetectSpeech(msgspec.Struct, frozen=True, kw_only=True, tag="detect_speech"):
    """Read a recording; `folder` has the models. Answered by `SpeechSegments`.

    `provider` runs graphs of fixed shapes (empty: the processor); what it compiles is kept below `cache`.
    """

    sound: bytes
    folder: str
    provider: str = ""
    cache: str = ""


class Transcribe(msgspec.Struct, frozen=True, kw_only=True, tag="transcribe"):
    """Transcribe a segment of the last recording. Answered by `Transcript`."""

    first_s: float
    last_s: float


class SpeechSegments(msgspec.Struct, frozen=True, kw_only=True, tag="speech_segments"):
    """How long the recording is, and its segments of speech: from, to (seconds) and how likely (0 to 1).

    `notes` say where the model's operators are, where that is not the processor.
    """

    seconds: float
    segments: tuple[tuple[float, float, float], ...]
    notes: tuple[str, ...] = ()


class Transcript(msgspec.Struct, frozen=True, kw_only=True, tag="transcript"):
    """The words of a segment, the tokens they were made of, and the mean of their log probabilities (nats)."""

    text: str
    tokens: tuple[int, ...] = ()
    mean_logprob: float = 0.0


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """It could not be done; `sound`: the recording is the reason; `model`: the files of the model are."""

    message: str
    sound: bool = False
    model: bool = False


Request = DetectSpeech | Transcribe
Answer = SpeechSegments | Transcript | Refused
