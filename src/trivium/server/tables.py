"""The field tables: what `/v1/completions` and `/v1/chat/completions` take, field by field.

A field that is not in one of these tables is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.base.errors import InvalidParameterError
from trivium.config.retention import MAX_RANGES
from trivium.config.sampling import MAX_CHOICES, MAX_LOGPROBS, MAX_STOP_STRINGS
from trivium.server.cache_fields import program_share, retention, retention_ranges
from trivium.server.chat_fields import OUTPUT_FIELDS, PROMPT_FIELDS
from trivium.server.constraint_fields import CONSTRAINT_FIELDS
from trivium.server.fields import (
    INT31,
    Field,
    FieldTable,
    Unsupported,
    bias,
    count,
    flag,
    ids,
    number,
    one_of,
    refused,
    text,
    texts,
    whatever,
)

MAX_PROMPTS = 256
"""Most prompts of one completions request."""
MAX_BIASES = 4096
MAX_STOP_IDS = 256

SAMPLING_FIELDS: Mapping[str, Field] = {
    "n": count(1, MAX_CHOICES, "Answers per prompt."),
    "best_of": count(1, MAX_CHOICES, "Answers drawn per prompt, of which the n most likely per token are returned."),
    "temperature": number(0, 100, "Softmax temperature; 0 takes the most likely token."),
    "top_k": count(-1, INT31, "Keep the k most likely tokens; 0 and -1 keep all."),
    "top_p": number(0, 1, "Keep the smallest set of tokens whose probability reaches p.", above=0),
    "min_p": number(0, 1, "Drop tokens less likely than p times the most likely one."),
    "typical_p": number(0, 1, "Keep the most typical tokens whose probability reaches p.", above=0),
    "repetition_penalty": number(0, 100, "Divides the logits of tokens seen in prompt or answer.", above=0),
    "presence_penalty": number(-2, 2, "Subtracted from the logits of tokens in the answer."),
    "frequency_penalty": number(-2, 2, "Subtracted per occurrence from the logits of tokens in the answer."),
    "logit_bias": bias(MAX_BIASES, "Token id to a number that is added to its logit."),
    "bad_words": texts(MAX_STOP_STRINGS, "Texts that may not be generated."),
    "seed": count(0, (1 << 64) - 1, "Seed of the random numbers; one is drawn when it is not given."),
    "min_tokens": count(0, INT31, "Fewest tokens before any end token or stop text may end the answer."),
    "stop": texts(MAX_STOP_STRINGS, "Texts that end the answer."),
    "stop_regex": texts(MAX_STOP_STRINGS, "Regular expressions whose match ends the answer where it is first whole."),
    "stop_token_ids": ids(MAX_STOP_IDS, "Tokens that end the answer, besides the model's own."),
    "include_stop_str_in_output": flag("Whether the stop (text, match, or token's text) stays in the answer."),
    "ignore_eos": flag("Whether the model's end tokens are ordinary tokens."),
    "skip_special_tokens": flag("Whether special tokens are left out of the text; true unless said otherwise."),
    "prompt_logprobs": count(0, MAX_LOGPROBS, "Report each prompt token's logprob and this many alternatives."),
    "prompt_logprob_start": count(0, INT31, "First prompt position that gets a logprob; needs prompt_logprobs."),
    "cache_retention": retention_ranges(
        MAX_RANGES, "How long KV of prompt tokens is kept: priorities of ranges; needs --eviction priority."
    ),
    "cache_retention_decode": retention("How long KV of generated tokens is kept; needs --eviction priority."),
    "logprobs_mode": one_of(
        ("raw", "processed"), "Distribution that logprobs describe, the model's or the drawn from; needs logprobs."
    ),
}
"""Fields that go to `SamplingParams` under their own name."""


def _stream_options(name: str, value: Any) -> bool:
    if not isinstance(value, dict):
        raise refused(name, value, "an object")
    known = {"include_usage", "include_obfuscation", "continuous_usage_stats"}
    for key, entry in value.items():
        if key not in known:
            raise InvalidParameterError(f"unknown field '{name}.{key[:60]}'; known is include_usage", param=name)
        if entry is not None and not isinstance(entry, bool):
            raise refused(f"{name}.{key}", entry, "true or false")
        if entry and key != "include_usage":
            raise refused(f"{name}.{key}", entry, "false (true is not supported)")
    return bool(value.get("include_usage"))


_USAGE_SCHEMA = {"type": "object", "properties": {"include_usage": {"type": "boolean"}}, "additionalProperties": False}

_COMMON_FIELDS: Mapping[str, Field] = {
    "model": whatever({"type": "string"}, "Name under which the model is served; see /v1/models."),
    **SAMPLING_FIELDS,
    **CONSTRAINT_FIELDS,
    "stream": flag("Send the answer as server-sent events while it grows."),
    "stream_options": Field(_stream_options, _USAGE_SCHEMA, "include_usage: end the stream with a chunk of usage."),
    "cache_salt": text(
        "Shares the prefix cache only with requests of the same salt.", max_chars=256, is_empty_allowed=False
    ),
    "priority": count(
        -INT31, INT31, "Smaller starts first, where requests are ordered by priority (--order priority); else only 0."
    ),
    "program": program_share("The program to which the request belongs: the prefix cache drops its paths last."),
    "timeout_s": number(0, 86400, "Seconds after which the request ends with an error.", above=0),
    "return_token_ids": flag("Report the token ids of prompt and answer."),
    "add_special_tokens": flag("Whether the tokenizer adds its special tokens to the prompt."),
    "max_tokens": count(0, INT31, "Most tokens to generate; 0 only scores the prompt."),
}

COMPLETION_FIELDS: Mapping[str, Field] = {
    **_COMMON_FIELDS,
    "prompt": whatever(
        {"anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}},
            {"type": "array", "items": {"type": "integer"}},
            {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        ]},
        "Text, list of texts, token ids, or list of lists of token ids.",
    ),
    "echo": flag("Begin each answer with its prompt."),
    "logprobs": count(0, MAX_LOGPROBS, "Report the logprob of each token and this many alternatives."),
}  # fmt: skip

CHAT_FIELDS: Mapping[str, Field] = {
    **_COMMON_FIELDS,
    **PROMPT_FIELDS,
    **OUTPUT_FIELDS,
    "max_completion_tokens": count(0, INT31, "Most tokens to generate; by default up to the context's end."),
    "logprobs": flag("Report the logprob of each token."),
    "top_logprobs": count(0, MAX_LOGPROBS, "Alternatives to report for each token; needs logprobs."),
}

_BOOKKEEPING: Mapping[str, str] = {
    "user": "Names the end user; without API keys, the tenant of --fair-share. This server keeps no records of it.",
    "metadata": "Labels for stored answers; this server stores none.",
    "store": "Whether to store the answer; this server stores none.",
    "service_tier": "Choice among price tiers; there is one.",
    "safety_identifier": "Names the end user for a provider's abuse checks; there are none.",
    "prompt_cache_key": "Routing hint for a prefix cache; every request finds the cache here.",
    "prompt_cache_retention": "Retention wish for a prefix cache; the cache keeps what fits.",
    "request_id": "Client's name for the request; X-Request-Id is the one that is echoed.",
}

_ONLY_CHAT = "conversations go to /v1/chat/completions"
_OFF: tuple[Any, ...] = (False,)
_ZERO: tuple[Any, ...] = (0,)

_UNSUPPORTED: Mapping[str, Unsupported] = {
    "guided_decoding_backend": Unsupported(("auto", "guidance", "llguidance"), "there is one"),
    "guided_whitespace_pattern": Unsupported(hint="structured_outputs.disable_any_whitespace: false allows any"),
    "spaces_between_special_tokens": Unsupported((True,)),
    "detokenize": Unsupported((True,)),
    "allowed_token_ids": Unsupported(hint="logit_bias can favour tokens"),
    "logits_processors": Unsupported(([],)),
    "logits_processor": Unsupported(),
    "custom_logit_processor": Unsupported(),
    "use_beam_search": Unsupported(_OFF),
    "num_beams": Unsupported((1,)),
    "length_penalty": Unsupported((1.0,)),
    "early_stopping": Unsupported(_OFF),
    "no_repeat_ngram_size": Unsupported(_ZERO),
    "truncate_prompt_tokens": Unsupported(hint="prompts are never cut"),
    "return_tokens_as_token_ids": Unsupported(_OFF, "return_token_ids reports ids"),
    "logprob_token_ids": Unsupported(),
    "repetition_detection": Unsupported(),
    "kv_transfer_params": Unsupported(),
    "vllm_xargs": Unsupported(({},)),
    "mm_processor_kwargs": Unsupported(({},)),
    "prompt_embeds": Unsupported(),
    "lora": Unsupported(hint="model names the adapter"),
    "lora_path": Unsupported(hint="model names the adapter"),
    "adapter": Unsupported(hint="model names the adapter"),
    "session_params": Unsupported(),
    "return_hidden_states": Unsupported(_OFF),
    "mirostat": Unsupported(_ZERO),
    "dry_multiplier": Unsupported(_ZERO),
    "xtc_probability": Unsupported(_ZERO),
}

COMPLETIONS = FieldTable(
    honoured=COMPLETION_FIELDS,
    bookkeeping=_BOOKKEEPING,
    unsupported={
        **_UNSUPPORTED,
        "suffix": Unsupported(("",), "the model completes to the right only"),
        "tools": Unsupported(([],), _ONLY_CHAT),
        "tool_choice": Unsupported(("none", "auto"), _ONLY_CHAT),
        "parallel_tool_calls": Unsupported((True,), _ONLY_CHAT),
        "reasoning_effort": Unsupported(("none",), _ONLY_CHAT),
        "thinking_token_budget": Unsupported(hint=_ONLY_CHAT),
        "max_reasoning_tokens": Unsupported(hint=_ONLY_CHAT),
    },
)

CHAT = FieldTable(
    honoured=CHAT_FIELDS,
    bookkeeping=_BOOKKEEPING,
    unsupported={
        **_UNSUPPORTED,
        "functions": Unsupported(([],), "use tools"),
        "function_call": Unsupported(("none", "auto"), "use tool_choice"),
        "audio": Unsupported(),
        "modalities": Unsupported((["text"],), "answers are text"),
        "prediction": Unsupported(),
        "reasoning": Unsupported(hint="use reasoning_effort or max_reasoning_tokens"),
        "stream_reasoning": Unsupported((True,), "reasoning is streamed as it comes"),
        "verbosity": Unsupported(),
        "web_search_options": Unsupported(),
        "echo": Unsupported(_OFF),
        "suffix": Unsupported(("",)),
        "chat_template": Unsupported(hint="the operator sets it with --chat-template"),
        "moderation": Unsupported(),
    },
)

TOKENIZE = FieldTable(
    honoured={
        "model": _COMMON_FIELDS["model"],
        "prompt": text("Text to tokenize."),
        **PROMPT_FIELDS,
        "add_special_tokens": _COMMON_FIELDS["add_special_tokens"],
        "return_token_strs": flag("Also report the text of each token."),
    },
    bookkeeping={},
    unsupported={
        "chat_template": Unsupported(hint="the operator sets it with --chat-template"),
        "mm_processor_kwargs": Unsupported(({},)),
    },
)

DETOKENIZE = FieldTable(
    honoured={"model": _COMMON_FIELDS["model"], "tokens": ids(1 << 20, "Token ids to turn into text.")},
    bookkeeping={},
    unsupported={},
)

PIN = FieldTable(
    honoured={
        "model": _COMMON_FIELDS["model"],
        "prompt": whatever(
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}, "Text, or token ids."
        ),
        **PROMPT_FIELDS,
        "add_special_tokens": _COMMON_FIELDS["add_special_tokens"],
        "cache_salt": _COMMON_FIELDS["cache_salt"],
        "ttl_s": number(
            0, 366 * 86400, "Seconds after which the prompt may be evicted again; never unless given.", above=0
        ),
    },
    bookkeeping={},
    unsupported={},
)

UNPIN = FieldTable(
    honoured={"pin_id": text("What /v1/cache/pin answered.", max_chars=256, is_empty_allowed=False)},
    bookkeeping={},
    unsupported={},
)

LOAD_ADAPTER = FieldTable(
    honoured={
        "lora_name": text("Name that requests give as their model.", max_chars=1000),
        "lora_path": text("Folder that peft wrote, below --lora-root; absolute, or relative to it.", max_chars=4096),
        "load_inplace": flag("Replace an adapter of the same name; its requests go on with what they began with."),
    },
    bookkeeping={"lora_int_id": "Number by which other servers know an adapter; here names do."},
    unsupported={"is_3d_lora_weight": Unsupported(_OFF), "base_model_name": Unsupported(hint="there is one base")},
)

UNLOAD_ADAPTER = FieldTable(
    honoured={"lora_name": text("Name of the adapter.", max_chars=1000)},
    bookkeeping={"lora_int_id": "Number by which other servers know an adapter; here names do."},
    unsupported={},
)
