"""An application over a scripted engine, and a client that calls it in process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.applications import Starlette

from support.fake_engine import ByteTokenizer, FakeEngine, JoiningTemplate, tiny_served
from trivium.config.options import ServerOptions
from trivium.grammar.detect import ModelDialects
from trivium.server.app import build_app


@dataclass(slots=True)
class Site:
    """An application, its engine, and a client that calls it in process."""

    app: Starlette
    engine: FakeEngine
    template: JoiningTemplate
    client: httpx.AsyncClient

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        """Post fields, with the served model's name unless another is given."""
        return await self.client.post(path, json={"model": "tiny", **fields})

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.post("/v1/completions", **{"prompt": "hi", **fields})

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.post("/v1/chat/completions", **{"messages": [{"role": "user", "content": "hi"}], **fields})


MakeSite = Callable[..., Site]


def open_site(
    engine: FakeEngine | None = None,
    *,
    template: JoiningTemplate | None = None,
    tokenizer: ByteTokenizer | None = None,
    served: dict[str, Any] | None = None,
    dialects: ModelDialects | None = None,
    **options: Any,
) -> Site:
    """Make a site; its client wants closing."""
    own_engine = engine or FakeEngine()
    own_template = template or JoiningTemplate()
    app = build_app(
        own_engine,
        tokenizer or ByteTokenizer(),
        own_template,
        ServerOptions(**options),
        tiny_served(**(served or {})),
        dialects=dialects,
    )
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://trivium.test")
    return Site(app, own_engine, own_template, client)
