"""`SamplingParams` refuses what nothing could honour, and names the field."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.base.errors import InvalidParameterError
from trivium.config.sampling import SamplingParams


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt_logprob_start": 3}, "prompt_logprob_start", "needs prompt_logprobs"),
        ({"prompt_logprob_start": 3, "logprobs": 2}, "prompt_logprob_start", "needs prompt_logprobs"),
        ({"logprobs_mode": "raw"}, "logprobs_mode", "needs logprobs or prompt_logprobs"),
        ({"logprobs_mode": "processed"}, "logprobs_mode", "needs logprobs or prompt_logprobs"),
        ({"logprobs_mode": ["raw"], "logprobs": 1}, "logprobs_mode", "'raw' or 'processed'"),
        ({"stop_token_ids": 5}, "stop_token_ids", "a list"),
        ({"stop_token_ids": None}, "stop_token_ids", "a list"),
        ({"logit_bias": None}, "logit_bias", "a mapping"),
        ({"logit_bias": [(1, 2.0)]}, "logit_bias", "a mapping"),
        ({"best_of": 1, "n": 2}, "best_of", "at least n = 2"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "at most max_tokens = 4"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidParameterError, match=words) as refusal:
        SamplingParams(**fields).validate()
    assert refusal.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt_logprobs": 0, "prompt_logprob_start": 7},
        {"prompt_logprobs": 0, "logprobs_mode": "processed"},
        {"logprobs": 0, "logprobs_mode": "raw"},
    ],
)
def test_what_fits_together_is_taken(fields: dict[str, Any]) -> None:
    SamplingParams(**fields).validate()
