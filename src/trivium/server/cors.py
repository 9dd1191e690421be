"""Permission for browsers: which origins may call, by the options of this moment."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from trivium.server.service import Service


class Cors:
    """ASGI middleware that answers browsers' questions, when any origin is allowed at all."""

    def __init__(self, app: ASGIApp, *, service: Service) -> None:
        """Wrap `app`."""
        self._app = app
        self._service = service
        self._origins: tuple[str, ...] = ()
        self._answering: ASGIApp = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one exchange through."""
        if self._origins != self._service.options.cors_origin:
            self._origins = self._service.options.cors_origin
            self._answering = self._allowing() if self._origins else self._app
        await self._answering(scope, receive, send)

    def _allowing(self) -> ASGIApp:
        return CORSMiddleware(
            self._app,
            allow_origins=list(self._origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
