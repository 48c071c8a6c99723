"""Routers whose errors have the format of one protocol."""

from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from engine.server.errors import ErrorShape
from engine.server.routing import ERROR_SHAPE


def protocol_router(shape: ErrorShape, **options: Any) -> APIRouter:
    """A router with FastAPI's options whose routes report errors in this format."""

    class ProtocolRoute(APIRoute):
        def matches(self, scope: Scope) -> tuple[Match, Scope]:
            match, child_scope = super().matches(scope)
            return match, {**child_scope, ERROR_SHAPE: shape}

    return APIRouter(route_class=ProtocolRoute, **options)
