"""What the server and the child that reads recordings say to each other: one msgpack frame each way."""

import msgspec


class Listen(msgspec.Struct, frozen=True, kw_only=True, tag="listen"):
    """Read a recording; `folder` has the models. Answered by `Heard`.

    `provider` runs graphs of fixed shapes (empty: the processor); what it compiles is kept below `cache`.
    """

    sound: bytes
    folder: str
    provider: str = ""
    cache: str = ""


class Transcribe(msgspec.Struct, frozen=True, kw_only=True, tag="transcribe"):
    """Write down a piece of the last recording. Answered by `Said`."""

    first_s: float
    last_s: float


class Heard(msgspec.Struct, frozen=True, kw_only=True, tag="heard"):
    """How long the recording is, and where in it somebody speaks: from, to (seconds) and how likely (0 to 1).

    `notes` say where the model's operators are, where that is not the processor.
    """

    seconds: float
    pieces: tuple[tuple[float, float, float], ...]
    notes: tuple[str, ...] = ()


class Said(msgspec.Struct, frozen=True, kw_only=True, tag="said"):
    """The words of a piece, the tokens they were made of, and the mean of their log probabilities (nats)."""

    text: str
    tokens: tuple[int, ...] = ()
    mean_logprob: float = 0.0


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """It could not be done; `sound`: the recording is the reason."""

    message: str
    sound: bool = False


Request = Listen | Transcribe
Answer = Heard | Said | Refused
