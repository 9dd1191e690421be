"""The backend of a Trivium server: what programs ask for goes over HTTP, everything else is done in this process.

The server's tokenizer and chat template are fetched once. So texts are cut, messages written and choices healed as they
are where the model is in this process, and a prompt is sent as tokens::

    program ── appends ──► transcript (tokens) ── POST /generate ──► server
       ▲                                                               │
       ╰──────────── text, tokens, logprobs, as they come ◄── events ──╯

Closing the iteration of a request closes its connection, by which the server knows that it is to be aborted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from trivium.base.errors import (
    ConfigError,
    EngineDeadError,
    TriviumError,
    UnsupportedFeatureError,
)
from trivium.base.sse import event_data_async
from trivium.lang.backends.model_words import ModelWords
from trivium.lang.driver import driver

if TYPE_CHECKING:
    import httpx

    from trivium.config.program_share import ProgramShare
    from trivium.config.sampling import SamplingParams
    from trivium.engine.messages import Delta

MAX_CONNECTIONS = 256
"""Requests that are open at a time; others wait for one of them to end."""
CONNECT_S = 10.0
SILENCE_S = 120.0
"""Seconds without a byte after which a server counts as dead; a live one sends a comment every `--keep-alive-s`."""
PATIENCE_S = 600.0
"""Seconds for which a request is sent again to a server whose queue is full."""
_CLOSE_S = 5.0
_DONE = b"[DONE]"


@dataclass(slots=True)
class _Lines:
    """The connections of one event loop."""

    client: httpx.AsyncClient
    room: asyncio.Semaphore


class RuntimeEndpoint(ModelWords):
    """Answers with a Trivium server; the name is SGLang's.

    >>> RuntimeEndpoint("http://127.0.0.1:8000", api_key="…")                    # doctest: +SKIP
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | None = None,  # noqa: FBT001  (SGLang's signature)
        chat_template_name: str | None = None,
    ) -> None:
        """Ask the server for its tokenizer and chat template.

        Args:
            base_url: Its address, with or without `/v1`.
            api_key: A key of the server's, where it has any.
            verify: `False` takes any certificate; a text names a file of those that are trusted.
            chat_template_name: Must be `None`: roles are written by the model's own chat template.

        Raises:
            ConfigError: The address is no HTTP address, or `verify` no file of certificates.
            UnsupportedFeatureError: A template is named, or the server is none of Trivium's.
            EngineDeadError: It cannot be reached.
            TriviumError: It refuses, because of the key or because it is loading.
        """
        if chat_template_name is not None:
            raise UnsupportedFeatureError(
                "chat_template_name is not supported: roles are written by the model's own chat template; the "
                "server's --chat-template sets another",
                param="chat_template_name",
            )
        self.base_url = _address(base_url)
        self._verify = _trust(verify)
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lines] = WeakKeyDictionary()
        told = self._tokenizer()
        from trivium.tokens.portable import read_template, read_tokenizer  # noqa: PLC0415  (start-up time)

        template = told.get("chat_template")
        self._max_len = int(told["max_model_len"])
        super().__init__(
            str(told["model"]),
            read_tokenizer(told["tokenizer"]),
            None if template is None else read_template(template),
        )

    async def submit(
        self, prompt_ids: list[int], params: SamplingParams, program: ProgramShare | None = None
    ) -> AsyncGenerator[Delta]:
        """Answer a prompt and yield its news; closing the generator aborts the request.

        Raises:
            RequestError: The request is refused.
            CapacityError: The server's queue was full for `PATIENCE_S`, or it is shutting down.
            EngineDeadError: The server cannot be reached, or goes away.
            TriviumError: The answer failed.
        """
        from trivium.lang.backends.wire import QueueFullError, request_body  # noqa: PLC0415  (start-up time)

        params.validate()
        body = msgspec.json.encode(request_body(prompt_ids, params, max_len=self._max_len, program=program))
        lines = self._own_lines()
        end_s = time.monotonic() + PATIENCE_S
        async with lines.room:
            while True:
                try:
                    async with contextlib.aclosing(self._stream(lines.client, body, params)) as news:
                        async for each in news:
                            yield each
                except QueueFullError as error:  # it comes before any news
                    wait_s = error.retry_after_s * random.uniform(0.5, 1.5)  # noqa: S311  (spreads, hides nothing)
                    if time.monotonic() + wait_s > end_s:
                        raise
                    await asyncio.sleep(wait_s)
                else:
                    return

    def end_program(self, program_id: str) -> None:
        """Leave it to the server, which lets a run's paths go when they have not been used for `--program-idle-s`."""

    def get_model_name(self) -> str:
        """Return what the server calls its model."""
        return self._name

    def flush_cache(self) -> None:
        """Forget cached prefixes that no running request uses.

        Raises:
            AuthenticationError: The server has admin keys, and this one's is none.
            EngineDeadError: It cannot be reached.
        """
        self._ask("POST", "/flush_cache")

    @property
    def info(self) -> Mapping[str, Any]:
        """What the server says of itself, and what its engine counts."""
        return self._ask("GET", "/server_info")

    def close(self) -> None:
        """Close the connections; requests that are open fail."""
        if self._lines:
            with contextlib.suppress(TimeoutError):
                driver.submit(self._close()).result(_CLOSE_S)

    async def _close(self) -> None:
        driver.closers.pop(self._close, None)
        lines = self._lines.pop(asyncio.get_running_loop(), None)
        if lines is not None:
            await lines.client.aclose()
            await asyncio.sleep(0)  # the sockets are closed in the next turn

    def _own_lines(self) -> _Lines:
        import httpx  # noqa: PLC0415  (start-up time)

        loop = asyncio.get_running_loop()
        lines = self._lines.get(loop)
        if lines is None:
            client = httpx.AsyncClient(
                base_url=self.base_url,
                headers={**self._headers, "content-type": "application/json"},
                verify=self._verify,
                timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S, pool=None),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=MAX_CONNECTIONS),
            )
            lines = self._lines[loop] = _Lines(client, asyncio.Semaphore(MAX_CONNECTIONS))
            driver.closers[self._close] = None
        return lines

    async def _stream(self, client: httpx.AsyncClient, body: bytes, params: SamplingParams) -> AsyncGenerator[Delta]:
        import httpx  # noqa: PLC0415  (start-up time)

        from trivium.lang.backends.wire import read_event, read_refusal  # noqa: PLC0415  (start-up time)

        is_complete = False
        try:
            async with client.stream("POST", "/generate", content=body) as response:
                if response.status_code != httpx.codes.OK:
                    told = await response.aread()
                    raise read_refusal(told, response.status_code, response.headers.get("retry-after"))
                async for payload in event_data_async(response.aiter_bytes()):
                    if payload == _DONE:
                        is_complete = True
                    else:
                        yield read_event(payload, params)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not is_complete:
            raise EngineDeadError(f"the server at {self.base_url} ended an answer before it was complete")

    def _tokenizer(self) -> dict[str, Any]:
        """Fetch what the server tells of its tokenizer."""
        told = self._ask("GET", "/v1/tokenizer", is_first=True)
        if not {"model", "max_model_len", "tokenizer"} <= set(told):
            raise self._foreign()
        return told

    def _ask(self, method: str, path: str, *, is_first: bool = False) -> dict[str, Any]:
        import httpx  # noqa: PLC0415  (start-up time)

        from trivium.lang.backends.wire import read_refusal  # noqa: PLC0415  (start-up time)

        driver.refuse_to_wait()
        try:
            timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
            with httpx.Client(headers=self._headers, verify=self._verify, timeout=timeout) as client:
                response = client.request(method, self.base_url + path)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if is_first and response.status_code == httpx.codes.NOT_FOUND:
            raise self._foreign()
        if response.status_code != httpx.codes.OK:
            raise read_refusal(response.content, response.status_code, response.headers.get("retry-after"))
        try:
            told: dict[str, Any] = msgspec.json.decode(response.content, type=dict[str, Any])
        except msgspec.DecodeError:
            raise self._foreign() from None
        return told

    def _foreign(self) -> TriviumError:
        return UnsupportedFeatureError(
            f"the server at {self.base_url} is none of Trivium's: it does not tell its tokenizer (GET /v1/tokenizer)",
            param="base_url",
        )

    def _unreachable(self, error: Exception) -> EngineDeadError:
        what = str(error) or type(error).__name__
        return EngineDeadError(f"the server at {self.base_url} cannot be reached, or went away: {what}")


def _address(given: object) -> str:
    if not isinstance(given, str) or not given.startswith(("http://", "https://")):
        raise ConfigError(f"base_url is {given!r}; it must be an address such as http://127.0.0.1:8000")
    return given.rstrip("/").removesuffix("/v1")


def _trust(verify: bool | str | None) -> ssl.SSLContext | bool:  # noqa: FBT001
    if verify is None or isinstance(verify, bool):
        return verify is not False
    try:
        return ssl.create_default_context(cafile=verify)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"verify is {verify!r}, which is no file of certificates: {error}") from error
