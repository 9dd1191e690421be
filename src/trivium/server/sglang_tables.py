"""The field table of `/generate`, in SGLang's words, and that of its `sampling_params`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.config.sampling import MAX_LOGPROBS, SGLANG_NAMES
from trivium.server.constraint_fields import CONSTRAINT_FIELDS
from trivium.server.fields import INT31, Field, FieldTable, Unsupported, count, flag, refused, text, whatever
from trivium.server.tables import COMPLETION_FIELDS, MAX_PROMPTS, SAMPLING_FIELDS

_OWN_NAMES = {ours: theirs for theirs, ours in SGLANG_NAMES.items()}
_NOT_SAMPLING = frozenset({"best_of", "prompt_logprobs", "prompt_logprob_start"})
"""Fields of the OpenAI routes that are not among SGLang's sampling parameters."""
_CONSTRAINTS = ("regex", "json_schema", "ebnf", "structural_tag", "structured_outputs")

GENERATE_SAMPLING = FieldTable(
    honoured={
        **{_OWN_NAMES.get(name, name): field for name, field in SAMPLING_FIELDS.items() if name not in _NOT_SAMPLING},
        "max_new_tokens": count(0, INT31, "Most tokens to generate, 128 unless given; 0 only reads the prompt."),
        **{name: CONSTRAINT_FIELDS[name] for name in _CONSTRAINTS},
    },
    bookkeeping={},
    unsupported={
        "spaces_between_special_tokens": Unsupported((True,)),
        "custom_params": Unsupported(({},)),
        "stream_interval": Unsupported((1,)),
        "beam_width": Unsupported((1,)),
    },
)
"""Fields of `sampling_params`."""


def to_own_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Call the fields of `sampling_params` what this server calls them."""
    return {SGLANG_NAMES.get(name, name): value for name, value in values.items()}


def _sampling_params(name: str, value: Any) -> list[dict[str, Any]]:
    """Read an object for all prompts, or a list of one per prompt; always as a list."""
    given = value if isinstance(value, list) else [value]
    if not given or not all(isinstance(each, dict) for each in given):
        raise refused(name, value, "an object, or a list of one per prompt")
    if len(given) > MAX_PROMPTS:
        raise refused(name, f"{len(given)} objects", f"at most {MAX_PROMPTS} objects")
    return [GENERATE_SAMPLING.read(each) for each in given]


_SAMPLING_SCHEMA = GENERATE_SAMPLING.schema()
_NO_ADAPTER = "model names the adapter"
_NO_MEDIA = "models take text only"
_ONE_ENGINE = "there is one engine"

GENERATE = FieldTable(
    honoured={
        "text": whatever(
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, "Text, or list of texts."
        ),
        "input_ids": whatever(
            {"anyOf": [
                {"type": "array", "items": {"type": "integer"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            ]},
            "Token ids, or list of lists of them, instead of text.",
        ),
        "sampling_params": Field(
            _sampling_params,
            {"anyOf": [_SAMPLING_SCHEMA, {"type": "array", "items": _SAMPLING_SCHEMA, "maxItems": MAX_PROMPTS}]},
            "How to draw and when to stop: an object, or a list of one per prompt.",
        ),
        "return_logprob": flag("Report the logprobs of tokens."),
        "logprob_start_len": count(
            -1, INT31,
            "First prompt position that is among the logprobs, itself without one; -1, the default: the answer's only.",
        ),
        "top_logprobs_num": count(0, MAX_LOGPROBS, "Alternatives to report for each token; needs return_logprob."),
        "return_text_in_logprobs": flag("Report logprobs with the texts of their tokens; needs return_logprob."),
        "stream": flag("Send the answer as server-sent events while it grows, each with all text so far."),
        "incremental_streaming_output": flag("Send what is new in each event instead; needs stream."),
        "reasoning_parser": text(
            "Dialect by which reasoning is told apart from the answer, in `parts`.", is_empty_allowed=False
        ),
        "starts_in_reasoning": flag("Whether the prompt has opened the reasoning already; needs reasoning_parser."),
        **{name: COMPLETION_FIELDS[name] for name in (
            "model", "cache_salt", "priority", "program", "timeout_s", "add_special_tokens",
        )},
    },
    bookkeeping={
        "rid": "Client's name for the request; X-Request-Id is the one that is echoed.",
        "log_metrics": "Whether the request counts in metrics; all do.",
        "no_logs": "Whether the request is kept out of logs; no text ever enters them.",
        "conversation_id": "Label of a conversation; this server keeps none.",
    },
    unsupported={
        "input_embeds": Unsupported(),
        "image_data": Unsupported(([],), _NO_MEDIA),
        "video_data": Unsupported(([],), _NO_MEDIA),
        "audio_data": Unsupported(([],), _NO_MEDIA),
        "modalities": Unsupported(([],), _NO_MEDIA),
        "token_ids_logprob": Unsupported(([],)),
        "return_hidden_states": Unsupported((False,)),
        "return_bytes": Unsupported((False,)),
        "session_id": Unsupported(hint="the prefix cache finds earlier turns by their tokens"),
        "session_params": Unsupported(({},), "the prefix cache finds earlier turns by their tokens"),
        "lora_path": Unsupported(hint=_NO_ADAPTER),
        "lora_id": Unsupported(hint=_NO_ADAPTER),
        "custom_logit_processor": Unsupported(),
        "extra_key": Unsupported(hint="use cache_salt"),
        "background": Unsupported((False,)),
        "data_parallel_rank": Unsupported(hint=_ONE_ENGINE),
        "bootstrap_host": Unsupported(hint=_ONE_ENGINE),
        "bootstrap_port": Unsupported(hint=_ONE_ENGINE),
        "bootstrap_room": Unsupported(hint=_ONE_ENGINE),
    },
)  # fmt: skip
"""Fields of `/generate`."""

CONCATENATE = FieldTable(
    honoured={},
    bookkeeping={
        "src_rids": "Branches whose texts are appended; the next prompt brings them along.",
        "dst_rid": "Program that they are appended to; the next prompt is its.",
    },
    unsupported={},
)
"""Fields of `/concate_and_append_request`."""
