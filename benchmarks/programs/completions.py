"""A backend of any server that offers OpenAI's /v1/completions, for comparisons: prompts as token ids, whole answers.

What servers differ in is settled here, and the same for all of them: an answer's tokens are those that its text makes,
cut or filled up to the length that was asked for, so that all engines meet prompts of equal lengths. Scores cannot be
had from most servers; a choice to score is sent as a prompt and computed, and all choices count as equally likely.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from trivium.base.errors import InternalError, TemplateError, UnsupportedFeatureError
from trivium.base.ids import TokenId
from trivium.engine.messages import Delta
from trivium.lang.driver import driver
from trivium.lang.transcript import Codec, TokenCodec
from trivium.sampling.batch import TokenLogprobs

if TYPE_CHECKING:
    from trivium.assembly import Frontend
    from trivium.config.program_share import ProgramShare
    from trivium.config.sampling import SamplingParams

_TIMEOUT_S = 200.0
_MAX_SHOWN_CHARS = 300


class Completions:
    """Asks a server; the tokenizer and the chat template are those of the model here."""

    def __init__(self, url: str, frontend: Frontend, filler: Sequence[int], *, takes_constraints: bool) -> None:
        """Remember the server.

        Args:
            url: Its base URL, without /v1.
            frontend: Tokenizer and template of the model that it serves.
            filler: Tokens that short answers are filled up with.
            takes_constraints: Whether it knows `structured_outputs`.
        """
        self._frontend = frontend
        self._filler = list(filler)
        self._takes_constraints = takes_constraints
        # Some servers close idle connections, and a request that meets a dead one would be a failure of this client's.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(base_url=url.rstrip("/"), timeout=_TIMEOUT_S, limits=limits)
        self._model: str | None = None
        self.codec: Codec = TokenCodec(frontend.tokenizer)

    def close(self) -> None:
        """Close the client."""
        driver.submit(self._client.aclose()).result()

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:  # noqa: FBT001
        """Write messages through the model's chat template.

        Raises:
            TemplateError: There is none.
        """
        template = self._frontend.chat_template
        if template is None:
            raise TemplateError(f"{self._frontend.name} has no chat template")
        return template.render(messages, add_generation_prompt=add_generation_prompt)

    def end_program(self, program_id: str) -> None:
        """Completions know no programs."""

    async def submit(
        self, prompt_ids: list[int], params: SamplingParams, program: ProgramShare | None = None
    ) -> AsyncGenerator[Delta]:
        """Answer a prompt.

        Raises:
            InternalError: The server did not answer, or not as it should.
        """
        is_score = params.prompt_logprobs is not None
        max_tokens = 1 if is_score else params.max_tokens or 1
        answer = await self._post(self._body(prompt_ids, params, max_tokens))
        [choice] = answer["choices"]
        cached = (answer.get("usage", {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if is_score:
            ids, text = [], ""
        else:
            ids, text = self._tokens(choice["text"], max_tokens, is_cut=params.structured_outputs is None)
        scored = [TokenLogprobs(TokenId(each), -1.0, 1, (), ()) for each in prompt_ids[params.prompt_logprob_start :]]
        yield Delta(
            request_id="remote",
            choice=0,
            first_token=0,
            token_ids=ids,
            text=text,
            cached_len=cached,
            prompt_logprobs=scored if is_score else None,  # type: ignore[arg-type]  # lists are invariant
            finish_reason=choice["finish_reason"] or "length",
        )

    def flush_cache(self) -> None:
        """Servers have no common way to do so."""

    @property
    def info(self) -> Mapping[str, Any]:
        """Where it is."""
        return {"url": str(self._client.base_url)}

    def _body(self, prompt_ids: list[int], params: SamplingParams, max_tokens: int) -> dict[str, Any]:
        body = {"prompt": prompt_ids, "max_tokens": max_tokens, "temperature": 0}
        if params.structured_outputs is None:
            return body | {"ignore_eos": True}
        if not self._takes_constraints:
            raise UnsupportedFeatureError("this server knows no structured_outputs")
        given = params.structured_outputs
        kinds = {name: value for name in ("json", "regex") if (value := getattr(given, name)) is not None}
        return body | {"structured_outputs": kinds}

    async def _post(self, body: dict[str, Any]) -> Any:
        if self._model is None:
            self._model = (await self._client.get("/v1/models")).json()["data"][0]["id"]
        try:
            response = await self._client.post("/v1/completions", json={"model": self._model, **body})
        except httpx.HTTPError as error:
            raise InternalError(f"the server failed: {error!r}") from error
        if response.status_code != httpx.codes.OK:
            raise InternalError(f"HTTP {response.status_code}: {response.text[:_MAX_SHOWN_CHARS]}")
        return response.json()

    def _tokens(self, text: str, length: int, *, is_cut: bool) -> tuple[list[int], str]:
        """Return the tokens of an answer, and its text as they spell it."""
        ids = self.codec.encode(text, continues=True)
        if is_cut:
            ids = (ids + self._filler * length)[:length]
        spelled = b"".join(self.codec.token_bytes(each) or b"" for each in ids)
        return ids, spelled.decode("utf-8", "replace")
