"""POST /v1/audio/transcriptions: transcribes recordings as text, subtitles or segments."""

import math
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.responses import Response

from engine.core.errors import InputFault
from engine.runner.onnx.speech.protocol import SpeechSegments
from engine.server.body import Body, fault, form_of, ignored_header
from engine.server.errors import NotServed
from engine.server.openai.errors import SHAPE
from engine.server.speech import NAME, Segment
from engine.server.sse import EventStream, while_connected
from engine.server.state import ServerState, server_state

router = APIRouter(tags=["openai"])
# Model names built into clients; all select the installed speech model.
USUAL_NAMES: Final = frozenset({NAME, "default", "whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"})
ENGLISH: Final = frozenset({"en", "english", "en-us", "en-gb"})
MAX_FIELDS: Final = 32
_LISTS: Final = frozenset({"timestamp_granularities", "include"})


class TranscriptionRequest(Body):
    """The form fields, without the file."""

    no_effect: ClassVar[frozenset[str]] = frozenset({"prompt"})

    model: str
    language: str | None = None
    prompt: str | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    timestamp_granularities: list[Literal["segment", "word"]] | None = None
    stream: bool | None = None
    include: list[str] | None = None
    chunking_strategy: str | None = None

    def refuse_impossible(self) -> None:
        """Raises: InputFault: a field requests something that is not supported."""
        if self.model.removesuffix(":latest") not in USUAL_NAMES:
            raise InputFault(f"No speech model is named {self.model!r}; use {NAME} or whisper-1.", "model")
        if self.language is not None and self.language.lower() not in ENGLISH:
            raise InputFault(f"{NAME} understands English only, not {self.language!r}.", "language")
        if "word" in (self.timestamp_granularities or ()):
            raise InputFault("Times of single words are not known here; use segment.", "timestamp_granularities")
        if self.include:
            raise InputFault(f"include: {self.include[0]!r} is not known here.", "include")
        if self.stream and self.response_format not in ("json", "text"):
            raise InputFault(f"A stream has text only, not {self.response_format}.", "response_format")

    def ignored(self) -> list[str]:
        """Also lists temperature and chunking_strategy if they have no effect."""
        names = super().ignored()
        if self.temperature:
            names.append("temperature")
        if self.chunking_strategy not in (None, "auto"):
            names.append("chunking_strategy")
        return names


_FORM: Final = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "model"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "model": {"type": "string"},
                        "language": {"type": "string"},
                        "prompt": {"type": "string"},
                        "response_format": {"enum": ["json", "text", "srt", "verbose_json", "vtt"]},
                        "temperature": {"type": "number", "minimum": 0, "maximum": 1},
                        "timestamp_granularities[]": {"type": "array", "items": {"enum": ["segment", "word"]}},
                        "stream": {"type": "boolean"},
                    },
                }
            }
        },
    }
}


@router.post("/v1/audio/transcriptions", openapi_extra=_FORM)
async def transcriptions(request: Request) -> Response:
    """Transcribe a recording."""
    state = server_state(request)
    sound, body = await _read(request)
    body.refuse_impossible()
    headers = ignored_header(body.ignored())
    if body.stream:
        return EventStream(_stream(state, sound), SHAPE, headers=headers)
    speech, segments = await while_connected(request, transcribed(state, sound))
    if body.response_format in ("text", "srt", "vtt"):
        text = {"text": _plain, "srt": _srt, "vtt": _vtt}[body.response_format](segments)
        return PlainTextResponse(text, headers=headers)
    payload: dict[str, Any] = {"text": _plain(segments).rstrip("\n")}
    if body.response_format == "verbose_json":
        payload = {"task": "transcribe", "language": "english", "duration": round(speech.seconds, 3), **payload}
        payload["segments"] = [_segment(index, segment) for index, segment in enumerate(segments)]
    return JSONResponse({**payload, "usage": _usage(speech)}, headers=headers)


@router.post("/v1/audio/translations", include_in_schema=False)
async def translations(_: Request) -> None:
    """Refused: the speech model understands only English."""
    raise NotServed("Recordings are not translated here: the speech model understands English only.")


async def _read(request: Request) -> tuple[bytes, TranscriptionRequest]:
    """The file and the fields of the form. Raises: InputFault."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InputFault("Send a form (multipart/form-data) with the recording as file.", "file")
    form = await form_of(request, MAX_FIELDS)
    fields: dict[str, Any] = {}
    sound: bytes | None = None
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name != "file":
                    raise InputFault(f"{name} is a file; the recording goes into file.", name)
                sound = await value.read()
                continue
            plain = name.removesuffix("[]")
            if plain in _LISTS:
                fields.setdefault(plain, []).append(value)
            else:
                fields[plain] = _typed(plain, value)
    finally:
        await form.close()
    if sound is None:
        raise InputFault("file is missing: send the recording in the form.", "file")
    try:
        return sound, TranscriptionRequest.model_validate(fields)
    except ValidationError as error:
        raise fault(error) from None


def _typed(name: str, value: str) -> object:
    """Convert a form's text to a number or boolean; the schema refuses other values."""
    if name == "temperature":
        try:
            return float(value)
        except ValueError:
            return value
    if name == "stream":
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)
    return value


async def transcribed(state: ServerState, sound: bytes) -> tuple[SpeechSegments, list[Segment]]:
    """The whole transcript of a recording. Raises: see `Speech.transcribe`."""
    speech: SpeechSegments | None = None
    segments = []
    async with aclosing(state.speech.transcribe(sound)) as pieces:
        async for item in pieces:
            if isinstance(item, SpeechSegments):
                speech = item
            else:
                segments.append(item)
    assert speech is not None
    return speech, segments


async def _stream(state: ServerState, sound: bytes) -> AsyncGenerator[bytes, None]:
    speech: SpeechSegments | None = None
    texts: list[str] = []
    async with aclosing(state.speech.transcribe(sound)) as pieces:
        async for item in pieces:
            if isinstance(item, SpeechSegments):
                speech = item
            elif item.transcript.text:
                delta = f" {item.transcript.text}" if texts else item.transcript.text
                texts.append(item.transcript.text)
                yield _event({"type": "transcript.text.delta", "delta": delta})
    assert speech is not None
    done = {"type": "transcript.text.done", "text": " ".join(texts), "usage": _usage(speech)}
    yield _event(done)


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def _usage(speech: SpeechSegments) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(speech.seconds)}


def _plain(segments: list[Segment]) -> str:
    return " ".join(segment.transcript.text for segment in segments if segment.transcript.text) + "\n"


def _srt(segments: list[Segment]) -> str:
    blocks = [
        f"{index}\n{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}\n{segment.transcript.text}\n"
        for index, segment in enumerate((p for p in segments if p.transcript.text), 1)
    ]
    return "\n".join(blocks)


def _vtt(segments: list[Segment]) -> str:
    blocks = [
        f"{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}\n{segment.transcript.text}\n"
        for segment in segments
        if segment.transcript.text
    ]
    return "\n".join(["WEBVTT\n", *blocks])


def _clock(seconds: float, mark: str) -> str:
    thousandths = round(seconds * 1000)
    hours, remainder = divmod(thousandths, 3_600_000)
    minutes, remainder = divmod(remainder, 60_000)
    return f"{hours:02}:{minutes:02}:{remainder // 1000:02}{mark}{remainder % 1000:03}"


def _segment(index: int, segment: Segment) -> dict[str, Any]:
    text = segment.transcript.text.encode()
    return {
        "id": index,
        "seek": 0,
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.transcript.text,
        "tokens": list(segment.transcript.tokens),
        "temperature": 0.0,
        "avg_logprob": round(segment.transcript.mean_logprob, 4),
        "compression_ratio": round(len(text) / len(zlib.compress(text)), 3) if text else 0.0,
        "no_speech_prob": round(segment.no_speech, 4),
    }
