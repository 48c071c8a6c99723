"""OpenAI routes that this server does not support; they return an explanation instead of a 404."""

from fastapi import APIRouter, Request

from engine.server.errors import NotServed

router = APIRouter(include_in_schema=False)


@router.post("/v1/moderations")
async def moderations(_: Request) -> None:
    """Refused: no classifier runs here, and an invented result would be worse than none."""
    raise NotServed("Moderation is not supported: no model of this server classifies content. Omit the call.")


@router.post("/v1/images/generations")
@router.post("/v1/images/edits")
async def images(_: Request) -> None:
    """Refused: no model generates images."""
    raise NotServed("Tessera does not generate images.")


@router.post("/v1/audio/speech")
async def speech(_: Request) -> None:
    """Refused: no model generates speech."""
    raise NotServed("Tessera does not generate speech.")
