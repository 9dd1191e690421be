"""The records of the API's answers; field names are OpenAI's, extensions are vLLM's where it has them.

`/openapi.json` draws its response schemas from these. A field of type `X | UnsetType` is absent unless asked for.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int
    """Prompt tokens whose KV was found in the prefix cache."""


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """What the tokens of the answers were."""

    reasoning_tokens: int
    """Tokens of reasoning, the marks around it included where they were told apart from content."""


class Usage(msgspec.Struct, frozen=True):
    """What a request cost; each prompt counts once, every drawn answer counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Where reasoning is told apart from content."""


class CompletionLogprobs(msgspec.Struct):
    """Logprobs in the shape of the completions API; all lists have one entry per token."""

    text_offset: list[int]
    """Index of each token's first character in the choice's text."""
    token_logprobs: list[float | None]
    tokens: list[str]
    """Token texts; a token that is no UTF-8 by itself reads `bytes:\\x80`."""
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One answer to one prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    """Stop text or token that ended the answer."""
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """Answer of `/v1/completions`."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatTokenAlternative(msgspec.Struct, frozen=True):
    """A token that could have been drawn."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """A token of the answer and its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    """The token's exact bytes, also where they are no UTF-8 by themselves."""
    top_logprobs: list[ChatTokenAlternative]


class ChatLogprobs(msgspec.Struct):
    """Logprobs in the shape of the chat API."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """What a tool call calls."""

    name: str
    arguments: str
    """JSON."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool, which the client makes and answers with a message of the role `tool`."""

    id: str
    type: str = "function"
    function: CalledFunction


class ChatAnswer(msgspec.Struct, kw_only=True):
    """The assistant's message."""

    role: str = "assistant"
    content: str | None
    """`None` where there are tool calls and nothing else."""
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer to the conversation."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """Answer of `/v1/chat/completions`."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ModelCard(msgspec.Struct, kw_only=True):
    """A served model, or one of its adapters."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "trivium"
    root: str
    parent: str | None = None
    max_model_len: int
    details: dict[str, Any]


class ModelList(msgspec.Struct, kw_only=True):
    """Answer of `/v1/models`."""

    object: str = "list"
    data: list[ModelCard]


class Tokens(msgspec.Struct, kw_only=True):
    """Answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(msgspec.Struct):
    """Answer of `/detokenize`."""

    prompt: str


class Condition(msgspec.Struct, kw_only=True):
    """Answer of `/health`, `/live` and `/ready`."""

    status: str
    reason: str | None = None


class Changes(msgspec.Struct, kw_only=True):
    """Answer of `/v1/config/reload`: options whose value in the configuration is another than the one in use."""

    changed: list[str]
    """Those that have their new values now."""
    needs_restart: list[str]
    """Those that keep their old values until the server is started again."""


class PageCounts(msgspec.Struct, kw_only=True):
    """KV pages over all groups."""

    total: int
    free: int
    used: int
    """In page tables of running requests, or pinned."""
    evictable: int
    """Cached, and used by nobody."""
    cached: int
    """In the prefix cache, used or not."""
    pinned: int


class NamespaceCounts(msgspec.Struct, kw_only=True):
    """What is cached for one namespace: model, precision, salt and so on, told as a key that keeps the salt secret."""

    namespace: str
    nodes: int
    tokens: int
    pages: int


class PinState(msgspec.Struct, kw_only=True):
    """A prompt that stays cached."""

    pin_id: str
    tokens: int
    expires_in_s: float | None


class CacheState(msgspec.Struct, kw_only=True):
    """Answer of `/v1/cache`."""

    eviction: str
    page_len: int
    nodes: int
    tokens: int
    pages: PageCounts
    evicted_pages: int
    """Pages that cached prefixes gave up to make room, since the start."""
    queried_tokens: int
    """Prompt tokens of the requests that were started."""
    hit_tokens: int
    """Of these, tokens that came from the cache."""
    hit_rate: float
    reserved_bytes: int
    """Of all pages that are not free."""
    wasted_bytes: int
    """Of these, bytes that hold no token which nothing else holds: ends of last pages, and copies of partial ones."""
    waste: float
    namespaces: list[NamespaceCounts]
    pins: list[PinState]


class PinMade(msgspec.Struct, kw_only=True):
    """Answer of `/v1/cache/pin`."""

    pin_id: str
    prompt_tokens: int
    pinned_tokens: int
    """Tokens of whole pages, which stay."""


class PinRemoved(msgspec.Struct, kw_only=True):
    """Answer of `/v1/cache/unpin`."""

    pin_id: str
    unpinned: bool = True


class ErrorDetail(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    """Every answer that is no success."""

    error: ErrorDetail
