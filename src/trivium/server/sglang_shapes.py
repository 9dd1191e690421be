"""The records of what is answered in SGLang's words. A field of type `X | UnsetType` is absent unless asked for."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

LogprobEntry = tuple[float | None, int, str | None]
"""Logprob, token id, and its text where texts were asked for."""


class EndReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why an answer ended."""

    type: str
    """`stop` or `length`."""
    matched: int | str | UnsetType | None = UNSET
    """Of `stop`: the stop text, or the token, that ended it; null for an end token of the model."""
    length: int | UnsetType = UNSET
    """Of `length`: its tokens."""


class AnswerPart(msgspec.Struct, frozen=True):
    """A piece of an answer's text."""

    kind: str
    """`reasoning` or `content`."""
    text: str


class GenerateMeta(msgspec.Struct, kw_only=True):
    """What is known of an answer besides its text."""

    id: str
    finish_reason: EndReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV was found in the prefix cache."""
    reasoning_tokens: int = 0
    weight_version: str
    """Changes with the version of the server and with the weights."""
    e2e_latency: float | UnsetType = UNSET
    """Seconds from the request's beginning to the answer's end; with its last event."""
    input_token_logprobs: list[LogprobEntry] | UnsetType = UNSET
    """From `logprob_start_len` on; the first entry has no logprob."""
    output_token_logprobs: list[LogprobEntry] | UnsetType = UNSET
    output_token_logprobs_length: int | UnsetType = UNSET
    input_top_logprobs: list[list[LogprobEntry] | None] | UnsetType = UNSET
    output_top_logprobs: list[list[LogprobEntry]] | UnsetType = UNSET


class GenerateAnswer(msgspec.Struct, kw_only=True):
    """Answer of `/generate`: an object, or a list of them for a list of prompts and for `n` above 1."""

    index: int | UnsetType = UNSET
    """Which one of a list an event belongs to."""
    text: str
    output_ids: list[int]
    meta_info: GenerateMeta
    parts: list[AnswerPart] | UnsetType = UNSET
    """What of the text is reasoning; with `reasoning_parser`."""


class ModelDescription(msgspec.Struct, kw_only=True):
    """Answer of `/model_info`."""

    model_path: str
    tokenizer_path: str
    served_model_name: str
    is_generation: bool = True
    preferred_sampling_params: None = None
    weight_version: str
    has_image_understanding: bool = False
    has_audio_understanding: bool = False
    model_type: str
    architectures: list[str]


class TokenizerAnswer(msgspec.Struct, kw_only=True):
    """Answer of `/v1/tokenizer`: enough to cut texts and write conversations exactly as the server does."""

    model: str
    max_model_len: int
    tokenizer: dict[str, Any]
    chat_template: dict[str, Any] | None
