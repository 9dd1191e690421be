"""`OpenAI`: chat and completion models behind any server that speaks OpenAI's API.

Servers of one API know different extensions. Which one answers is told (`server=`), known by its address, or found in
its list of models; what it is not known to take is refused by name rather than sent in the hope that it acts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trivium.base.errors import ConfigError, InvalidParameterError, RemoteError, TemplateError
from trivium.lang.backends.api_client import ApiClient
from trivium.lang.backends.remote import ANSWERING, Asked, Piece, RemoteBackend, text_prompt

if TYPE_CHECKING:
    from trivium.config.sampling import SamplingParams
    from trivium.config.structured import StructuredOutputs
    from trivium.lang.choices import TokenLogprob

INSTRUCT_MODEL_NAMES = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
"""Models that take texts, whatever `is_chat_model` is by default."""
CRUSOE_BASE_URL = "https://managed-inference-api-proxy.crusoecloud.com/v1/"
_OPENAI_HOSTS = ("api.openai.com", ".openai.azure.com", ".cognitiveservices.azure.com")

Spell = Callable[["StructuredOutputs"], dict[str, Any]]
"""A constraint in the words of a server."""


def _as_response_format(given: StructuredOutputs) -> dict[str, Any]:
    if given.json_object:
        return {"response_format": {"type": "json_object"}}
    import json  # noqa: PLC0415

    schema = json.loads(given.schema_text)
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    }


def _as_structured_outputs(given: StructuredOutputs) -> dict[str, Any]:
    return {"structured_outputs": {given.kind: getattr(given, given.kind)}}


def _as(name: str) -> Spell:
    return lambda given: {name: getattr(given, given.kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a kind of server takes beyond OpenAI's own fields."""

    fields: frozenset[str] = frozenset()
    """Sampling parameters, under their own names."""
    constraints: Mapping[str, Spell] = field(default_factory=dict)
    """Kinds of constraints that it takes."""
    is_openai: bool = False
    """Whether it is OpenAI's own, which takes only what differs from its defaults, and counts completion tokens by
    another name."""
    counts_streams: bool = True
    """Whether it takes `stream_options`."""
    continues: Mapping[str, Any] | None = None
    """Fields that have it go on with the last message."""
    scores: bool = False
    """Whether completions report the logprobs of a prompt that is echoed."""


_JSON: Mapping[str, Spell] = {"json": _as_response_format, "json_object": _as_response_format}
_STRUCTURED: Mapping[str, Spell] = dict.fromkeys(
    ("json", "json_object", "regex", "grammar", "structural_tag"), _as_structured_outputs
)
_MORE = frozenset({"top_k", "min_p", "min_tokens", "stop_token_ids", "ignore_eos"})
_CONTINUES = {"continue_final_message": True, "add_generation_prompt": False}
SERVERS: Mapping[str, Server] = {
    "openai": Server(constraints=_JSON, is_openai=True),
    "trivium": Server(
        fields=_MORE,
        constraints=_STRUCTURED,
        continues=_CONTINUES,
        scores=True,
    ),
    "vllm": Server(
        fields=_MORE,
        constraints=_STRUCTURED,
        continues=_CONTINUES,
        scores=True,
    ),
    "sglang": Server(
        fields=_MORE,
        constraints={**_JSON, "regex": _as("regex"), "grammar": _as("ebnf")},
        continues={"continue_final_message": True},
    ),
    "other": Server(constraints=_JSON, counts_streams=False),
}
"""By the name that a server gives as the owner of its models; `other` is what nobody knows."""

_OWN = frozenset({
    "n", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "max_tokens", "stop", "stop_regex",
    "logprobs", "structured_outputs",
})  # fmt: skip
_SENT_IF_OTHER: Mapping[str, Any] = {
    "n": 1, "temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": None,
}  # fmt: skip
_SENT_ALWAYS = frozenset({"temperature", "top_p", "top_k", "min_p"})
"""To servers whose models may recommend other defaults."""


class OpenAI(RemoteBackend):
    """A model behind OpenAI's API: OpenAI's own, Azure's, or any other with `base_url`."""

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,  # noqa: FBT001
        chat_template: str | None = None,
        is_azure: bool = False,  # noqa: FBT001, FBT002
        *args: Any,
        server: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Prepare a client; nothing is sent.

        Args:
            model_name: The model, as the server calls it.
            is_chat_model: Whether it takes messages; `None` knows OpenAI's few completion models, and takes all others
                for chat models.
            chat_template: For completion models: the Jinja template by which roles are written as text.
            is_azure: Whether the server is Azure's.
            args: Further arguments of the package's client.
            server: What answers, one of `SERVERS`; `None` finds out.
            kwargs: Arguments of the package's client: `api_key`, `base_url`, `timeout`, `max_retries`...

        Raises:
            ConfigError: The package `openai` is not installed, or refuses the arguments.
            InvalidParameterError: There is no such server.
        """
        super().__init__(model_name)
        if server is not None and server not in SERVERS:
            raise InvalidParameterError(f"server is {server!r}; it must be {', '.join(SERVERS)}", param="server")
        self.is_chat_model = model_name not in INSTRUCT_MODEL_NAMES if is_chat_model is None else is_chat_model
        self._template = None if chat_template is None else _compiled(chat_template)
        self._client = ApiClient("openai", "AsyncAzureOpenAI" if is_azure else "AsyncOpenAI", args, kwargs)
        self._server = None if server is None else SERVERS[server]
        self._finding = asyncio.Lock()
        if server is None and (is_azure or self._client.host.endswith(_OPENAI_HOSTS)):
            self._server = SERVERS["openai"]

    def close(self) -> None:
        """Give back connections."""
        self._client.close()

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:  # noqa: FBT001
        """Write messages: for chat models as `text()` shows them, for completion models by the template.

        Raises:
            TemplateError: A completion model has no template, or the template refuses the messages.
        """
        if self.is_chat_model:
            return super().render(messages, add_generation_prompt)
        if self._template is None:
            raise TemplateError(
                f"{self.model_name} is a completion model, so programs on it have no roles; give "
                "OpenAI(chat_template=...), or is_chat_model=True"
            )
        return str(self._template.render(messages, add_generation_prompt=add_generation_prompt))

    async def write(self, asked: Asked) -> AsyncGenerator[Piece]:
        """Answer and yield pieces as they come; closing the generator ends the request.

        Raises:
            UnsupportedFeatureError: The server is not known to take what is asked.
            RemoteError: It refused, or failed.
        """
        server = await self._found()
        fields = self._fields(asked.params, server)
        if self.is_chat_model:
            fields["messages"], more = self._conversation(asked, server)
            fields["extra_body"] |= more
            resource = self._client.of("chat.completions")
        else:
            fields["prompt"] = text_prompt(asked, self)
            resource = self._client.of("completions")
        async with aclosing(self._client.stream(resource.create, fields)) as chunks:
            async for chunk in chunks:
                for piece in self._pieces(chunk):
                    yield piece

    async def score(self, text: str, choices: Sequence[str]) -> list[list[TokenLogprob]]:
        """Return the logprobs of each choice's tokens behind a text; for completion models of servers that echo.

        Raises:
            UnsupportedFeatureError: It is a chat model, or its server does not report the logprobs of a prompt.
            RemoteError: It refused, or failed.
        """
        server = await self._found()
        if self.is_chat_model:
            raise self.unsupported(
                "select",
                "chat models do not score given texts; take a completion model, or gen with a regex or json_schema",
            )
        if not server.scores:
            raise self.unsupported("select", "its server is not known to report the logprobs of an echoed prompt")
        create = self._client.of("completions").create
        fields = {"model": self.model_name, "max_tokens": 0, "echo": True, "logprobs": 0, "temperature": 0}
        answer = await self._client.call(create, {**fields, "prompt": [text + choice for choice in choices]})
        self._count(answer.usage)
        rows = [each.logprobs for each in sorted(answer.choices, key=lambda each: each.index)]
        if len(rows) != len(choices) or any(row is None or not row.tokens for row in rows):
            raise self.unsupported("select", "its server reported no logprobs of the echoed prompt")
        start = _common_start(len(text), [row.text_offset for row in rows])
        return [
            [
                (logprob, -1, token)
                for token, logprob, at in zip(row.tokens, row.token_logprobs, row.text_offset, strict=True)
                if at >= start
            ]
            for row in rows
        ]

    # -- parts

    async def _found(self) -> Server:
        """Return what the server takes, asking for its models once."""
        async with self._finding:
            if self._server is None:
                models = await self._client.call(self._client.of("models").list, {})
                owner = next((str(each.owned_by) for each in models.data if each.id == self.model_name), "other")
                self._server = SERVERS.get(owner, SERVERS["other"])
            return self._server

    def _fields(self, params: SamplingParams, server: Server) -> dict[str, Any]:
        self.refuse_all_but(_OWN | server.fields, params)
        fields: dict[str, Any] = {"model": self.model_name, "stream": True}
        if server.counts_streams:
            fields["stream_options"] = {"include_usage": True}
        most = "max_completion_tokens" if server.is_openai and self.is_chat_model else "max_tokens"
        if params.max_tokens is not None:
            fields[most] = params.max_tokens
        if params.stop:
            fields["stop"] = list(params.stop)
        for name, neutral in _SENT_IF_OTHER.items():
            value = getattr(params, name)
            if value != neutral or (name in _SENT_ALWAYS and not server.is_openai):
                fields[name] = value
        if params.logprobs is not None:
            chat = {"logprobs": True, "top_logprobs": params.logprobs}
            fields |= chat if self.is_chat_model else {"logprobs": params.logprobs}
        more = {name: getattr(params, name) for name in server.fields}
        extra = {name: value for name, value in more.items() if value or name in _SENT_ALWAYS}
        if params.structured_outputs is not None:
            extra |= self._constraint(params.structured_outputs, server)
        return fields | {
            "extra_body": {name: list(value) if isinstance(value, tuple) else value for name, value in extra.items()}
        }

    def _constraint(self, given: StructuredOutputs, server: Server) -> dict[str, Any]:
        spell = server.constraints.get(given.kind)
        if spell is None or (spell is _as_response_format and not self.is_chat_model):
            name = {"json": "json_schema", "grammar": "ebnf"}.get(given.kind, given.kind)
            raise self.unsupported(
                name,
                "its server is not known to take it (types and choices are such constraints too); name it with server=",
            )
        return spell(given)

    def _conversation(self, asked: Asked, server: Server) -> tuple[list[Mapping[str, str]], Mapping[str, Any]]:
        """Return the messages, and the fields that say how the last one is taken."""
        if asked.has_loose_text or asked.open_role != ANSWERING:
            raise self.unsupported(
                "text outside roles", "a chat model takes messages; write user(...) and put gen inside assistant(...)"
            )
        if not asked.open_content:
            return list(asked.messages), {}
        if server.continues is None:
            raise self.unsupported(
                "text before gen in assistant()",
                "its API does not go on with a message; begin the message with gen, or let the model write the whole "
                "message with @function(num_api_spec_tokens=...)",
            )
        begun = {"role": ANSWERING, "content": asked.open_content}
        return [*asked.messages, begun], server.continues

    def _pieces(self, chunk: Any) -> list[Piece]:
        pieces = [_piece(each, is_chat=self.is_chat_model) for each in chunk.choices]
        usage = getattr(chunk, "usage", None)
        if usage is not None:
            self._count(usage)
            cached = getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", None)
            counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
            pieces.append(Piece(0, "", counts if cached is None else counts | {"cached_tokens": cached}))
        return pieces

    def _count(self, usage: Any) -> None:
        if usage is not None:
            self.token_usage.prompt_tokens += usage.prompt_tokens or 0
            self.token_usage.completion_tokens += usage.completion_tokens or 0


class Crusoe(OpenAI):
    """A model of Crusoe's, whose API is OpenAI's."""

    def __init__(
        self,
        model_name: str,
        api_key: str | None = None,
        base_url: str | None = None,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Prepare a client; the key is `CRUSOE_API_KEY`'s by default.

        Raises:
            ConfigError: There is no key, or the package `openai` is not installed.
        """
        key = api_key or os.environ.get("CRUSOE_API_KEY")
        if not key:
            raise ConfigError("Crusoe needs a key; give api_key=, or set CRUSOE_API_KEY")
        super().__init__(
            model_name, chat_template=chat_template, api_key=key, base_url=base_url or CRUSOE_BASE_URL, **kwargs
        )


def _piece(choice: Any, *, is_chat: bool) -> Piece:
    if is_chat and getattr(choice.delta, "refusal", None):
        raise RemoteError(f"the model refused: {choice.delta.refusal}")
    text = (choice.delta.content if is_chat else choice.text) or ""
    meta: dict[str, Any] = {}
    if choice.logprobs is not None:
        meta = _chat_logprobs(choice.logprobs) if is_chat else _completion_logprobs(choice.logprobs)
    if choice.finish_reason is not None:
        more = choice.model_extra or {}
        matched = more.get("stop_reason", more.get("matched_stop"))
        meta["finish_reason"] = {"type": choice.finish_reason, "matched": matched}
    return Piece(choice.index, text, meta)


def _chat_logprobs(logprobs: Any) -> dict[str, Any]:
    entries = logprobs.content or []
    return {
        "output_token_logprobs": [(each.logprob, -1, each.token) for each in entries],
        "output_top_logprobs": [[(top.logprob, -1, top.token) for top in each.top_logprobs] for each in entries],
    }


def _completion_logprobs(logprobs: Any) -> dict[str, Any]:
    pairs = zip(logprobs.token_logprobs or [], logprobs.tokens or [], strict=True)
    tops = [[(logprob, -1, token) for token, logprob in (top or {}).items()] for top in logprobs.top_logprobs or []]
    return {"output_token_logprobs": [(logprob, -1, token) for logprob, token in pairs], "output_top_logprobs": tops}


def _common_start(text_len: int, offsets: Sequence[Sequence[int]]) -> int:
    """Return where the last token begins that no choice moves, or that precedes all that do."""
    return max(set.intersection(*({0, *(at for at in row if at <= text_len)} for row in offsets)))


def _compiled(source: str) -> Any:
    from trivium.tokens.chat import ChatTemplate  # noqa: PLC0415  (start-up time)

    return ChatTemplate(source)
