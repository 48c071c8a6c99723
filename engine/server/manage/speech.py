"""/tessera/v1/speech: transcripts for dictation in the window, and the download of the speech model."""

import asyncio

from fastapi import APIRouter, Request

from engine.api.jobs import Job, JobKind
from engine.api.speech import SpeechRequest, SpeechState, SpokenSegment, SpokenText
from engine.job_kinds.speech_model import DOWNLOAD_BYTES, FetchSpeech, can_fetch
from engine.server.msgspec_routes import TypedRoute
from engine.server.openai.audio import transcribed
from engine.server.speech import LANGUAGES, NAME
from engine.server.sse import while_connected
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1", tags=["management"], route_class=TypedRoute)


@router.get("/speech")
async def speech(request: Request) -> SpeechState:
    """The installed or available speech model, and its languages."""
    service = server_state(request).speech
    return SpeechState(
        installed=await asyncio.to_thread(service.is_installed),
        model=NAME,
        languages=LANGUAGES,
        path=str(service.folder),
        download_bytes=DOWNLOAD_BYTES,
        installable=can_fetch(),
    )


@router.post("/speech")
async def transcribe(request: Request, body: SpeechRequest) -> SpokenText:
    """Transcribe a recording. It is not stored."""
    detected, segments = await while_connected(request, transcribed(server_state(request), body.sound))
    spoken_segments = [SpokenSegment(start=s.start, end=s.end, text=s.transcript.text) for s in segments]
    return SpokenText(seconds=detected.seconds, segments=tuple(spoken_segments))


@router.post("/speech/model", status_code=202)
async def fetch_model(request: Request) -> Job:
    """Start downloading the speech model; this request counts as consent."""
    return server_state(request).jobs.start(JobKind.FETCH, NAME, FetchSpeech())
