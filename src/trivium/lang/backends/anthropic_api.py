"""`Anthropic`: models behind Anthropic's messages API, which writes and streams, and does nothing else for programs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from trivium.lang.backends.api_client import ApiClient
from trivium.lang.backends.remote import ANSWERING, Asked, Piece, RemoteBackend, text_prompt

_HONOURED = frozenset({"max_tokens", "stop", "stop_regex", "temperature", "top_p", "top_k"})
_DEFAULT_TOKENS = 128
_OPEN: Mapping[str, tuple[float, ...]] = {"temperature": (1.0,), "top_p": (1.0,), "top_k": (0, -1)}
"""Values that say nothing. Others are sent beside the fields that the package knows, as only some models take them."""
_REASONS: Mapping[str, str] = {
    "end_turn": "stop", "stop_sequence": "stop", "pause_turn": "stop", "max_tokens": "length",
    "refusal": "content_filter",
}  # fmt: skip
"""What the API calls the ends of answers, to what they are called here."""


class Anthropic(RemoteBackend):
    """A model of Anthropic's."""

    max_stops = 4

    def __init__(self, model_name: str, *args: Any, **kwargs: Any) -> None:
        """Prepare a client; nothing is sent.

        Args:
            model_name: The model.
            args: Arguments of the package's client.
            kwargs: Its arguments by name: `api_key`, `base_url`, `timeout`, `max_retries`...

        Raises:
            ConfigError: The package `anthropic` is not installed, or refuses the arguments.
        """
        super().__init__(model_name)
        self._client = ApiClient("anthropic", "AsyncAnthropic", args, kwargs)

    def close(self) -> None:
        """Give back connections."""
        self._client.close()

    async def write(self, asked: Asked) -> AsyncGenerator[Piece]:
        """Answer and yield pieces as they come; closing the generator ends the request.

        Raises:
            UnsupportedFeatureError: The API cannot do what is asked.
            RemoteError: It refused, or failed.
        """
        params = asked.params
        self.refuse_all_but(_HONOURED, params)
        fields: dict[str, Any] = {
            "model": self.model_name,
            "max_tokens": params.max_tokens or _DEFAULT_TOKENS,
            "stream": True,
            **self._conversation(asked),
        }
        if params.stop:
            fields["stop_sequences"] = list(params.stop)
        drawn = {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
        fields["extra_body"] = {name: value for name, value in drawn.items() if value not in _OPEN[name]}
        async with aclosing(self._client.stream(self._client.of("messages").create, fields)) as events:
            async for event in events:
                piece = self._piece(event)
                if piece is not None:
                    yield piece

    def _conversation(self, asked: Asked) -> dict[str, Any]:
        """Return the messages; a program without roles is one message of the user's, as in SGLang."""
        if not asked.messages and asked.open_role is None:
            return {"messages": [{"role": "user", "content": text_prompt(asked, self)}]}
        if asked.has_loose_text or asked.open_role != ANSWERING:
            raise self.unsupported(
                "text outside roles", "beside roles, text must be in user(...), and gen inside assistant(...)"
            )
        messages = list(asked.messages)
        system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else None
        if asked.open_content:  # the API goes on with it, where the model does at all
            messages.append({"role": ANSWERING, "content": asked.open_content})
        return {"messages": messages} if system is None else {"messages": messages, "system": system}

    def _piece(self, event: Any) -> Piece | None:
        match event.type:
            case "message_start":
                usage = event.message.usage
                self.token_usage.prompt_tokens += usage.input_tokens
                cached = getattr(usage, "cache_read_input_tokens", None)
                return Piece(0, "", {"prompt_tokens": usage.input_tokens, "cached_tokens": cached or 0})
            case "content_block_delta" if event.delta.type == "text_delta":
                return Piece(0, event.delta.text)
            case "message_delta":
                self.token_usage.completion_tokens += event.usage.output_tokens
                reason = _REASONS.get(event.delta.stop_reason, event.delta.stop_reason)
                finish = {"type": reason, "matched": event.delta.stop_sequence}
                return Piece(0, "", {"finish_reason": finish, "completion_tokens": event.usage.output_tokens})
        return None
