"""What SGLang's programs ask of a server besides `/generate`: who it is, whether it is well, an empty cache."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trivium import __version__
from trivium.base.errors import UnsupportedFeatureError
from trivium.server.body import read_json_object
from trivium.server.errors import ForbiddenError
from trivium.server.service import Service
from trivium.server.sglang_shapes import ModelDescription, TokenizerAnswer
from trivium.server.sglang_tables import CONCATENATE

_SHOWN_INFO = (
    "model", "architecture", "precision", "arithmetic", "executor", "fingerprint", "max_model_len", "vocab_size",
    "kv_cache", "kv_tokens", "kv_bytes", "kv_events", "weights", "load_seconds",
)  # fmt: skip
"""What the engine says of itself that is shown; the rest names folders of this machine."""
_FROM_OTHER_SITES = frozenset({b"cross-site", b"same-site"})


class SglangRoutes:
    """Endpoint functions over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def model_info(self, _: Request) -> Response:
        """Describe the model."""
        service = self._service
        service.check_ready()
        served = service.served
        info = ModelDescription(
            model_path=served.name,
            tokenizer_path=served.name,
            served_model_name=served.name,
            weight_version=service.fingerprint,
            model_type=served.config.architecture,
            architectures=[served.config.architecture],
        )
        return _json(info)

    async def server_info(self, _: Request) -> Response:
        """Describe the server, what was loaded, and what the engine counts."""
        service = self._service
        service.check_ready()
        status = service.engine.status()
        return _json({
            "version": __version__,
            "status": "ready",
            "model_path": service.served.name,
            "served_model_name": list(service.served.names),
            **{name: status.info[name] for name in _SHOWN_INFO if name in status.info},
            "internal_states": [await service.engine.call("stats")],
        })

    async def flush_cache(self, request: Request) -> Response:
        """Forget every cached prefix that no running request uses, and that is not pinned.

        Raises:
            ForbiddenError: A page of another site asks, in somebody's browser.
        """
        headers = dict(request.scope["headers"])
        if b"origin" in headers or headers.get(b"sec-fetch-site") in _FROM_OTHER_SITES:
            raise ForbiddenError("a web page may not flush the cache; call this route from a program")
        self._service.check_ready()
        return _json(await self._service.engine.call("flush"))

    async def profile(self, _: Request) -> Response:
        """Refuse to profile.

        Raises:
            UnsupportedFeatureError: Always.
        """
        raise UnsupportedFeatureError(
            "profiling is not supported; --trace-steps writes what every step did and how long it took"
        )

    async def concatenate(self, request: Request) -> Response:
        """Take note that branches were appended to a program, whose next prompt brings their texts itself.

        Raises:
            InvalidParameterError: A field is unknown.
        """
        self._service.check_ready()
        limit = self._service.options.max_body_bytes
        CONCATENATE.read(await read_json_object(request.scope, request.receive, max_bytes=limit))
        return _json({"spliced": False})

    async def tokenizer(self, _: Request) -> Response:
        """Describe tokenizer and chat template."""
        service = self._service
        service.check_ready()
        template = service.chat_template
        answer = TokenizerAnswer(
            model=service.served.name,
            max_model_len=service.context_len,
            tokenizer=service.tokenizer.describe(),
            chat_template=None if template is None else template.describe(),
        )
        return _json(answer)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
