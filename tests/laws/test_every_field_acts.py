"""No field of `SamplingParams` is taken and ignored: two values change the answer, or one is refused by its name.

A new field without a row here fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from support.tiny_engine import tiny_model
from trivium.api import LLM, RequestOutput
from trivium.base.errors import RequestError
from trivium.config.chat_output import ChatOutput
from trivium.config.retention import RangeRetention, Retention
from trivium.config.sampling import SamplingParams
from trivium.config.structured import StructuredOutputs

PROMPT = "hello"
BOS, EOS, A = 1, 2, 67
"""Ids of the tiny model: start, end, and the letter a."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1, seed=0) as own:
        yield own


@dataclass(frozen=True, slots=True)
class Row:
    """Two values of a field, between which answers must differ."""

    first: Any
    second: Any
    context: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters, under which the field has something to act on."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A value that is refused by the field's name."""

    value: Any


DRAWN = {"temperature": 1.0, "seed": 1, "max_tokens": 24}
GREEDY = {"temperature": 0.0, "max_tokens": 24}
SAYS_A: dict[str, Any] = {**GREEDY, "logit_bias": {A: 100.0}}

ROWS: dict[str, Row | Refused] = {
    "n": Row(1, 2, DRAWN),
    "best_of": Row(None, 8, DRAWN),
    "temperature": Row(0.0, 1.0, {"seed": 1, "max_tokens": 24}),
    "top_k": Row(0, 2, DRAWN),
    "top_p": Row(1.0, 0.1, DRAWN),
    "min_p": Row(0.0, 0.5, DRAWN),
    "typical_p": Row(1.0, 0.1, DRAWN),
    "repetition_penalty": Row(1.0, 2.0, GREEDY),
    "presence_penalty": Row(0.0, 2.0, DRAWN),
    "frequency_penalty": Row(0.0, 2.0, DRAWN),
    "logit_bias": Row({}, {A: 100.0}, GREEDY),
    "bad_words": Row((), ("aa",), SAYS_A),
    "seed": Row(1, 2, {"temperature": 1.0, "max_tokens": 24}),
    "max_tokens": Row(3, 5, GREEDY),
    "min_tokens": Row(0, 5, {**GREEDY, "logit_bias": {EOS: 100.0}}),
    "stop": Row((), ("aaa",), SAYS_A),
    "stop_regex": Row((), ("a{3}",), SAYS_A),
    "stop_token_ids": Row((), (A,), SAYS_A),
    "include_stop_str_in_output": Row(False, True, {**SAYS_A, "stop": ("aaa",)}),
    "ignore_eos": Row(False, True, {**GREEDY, "logit_bias": {EOS: 100.0}}),
    "skip_special_tokens": Row(True, False, {**GREEDY, "logit_bias": {BOS: 100.0}}),
    "spaces_between_special_tokens": Refused(False),
    "logprobs": Row(1, 3, GREEDY),
    "prompt_logprobs": Row(1, 3, GREEDY),
    "prompt_logprob_start": Row(0, 2, {**GREEDY, "prompt_logprobs": 1}),
    "cache_retention": Refused((RangeRetention(priority=90),)),
    "cache_retention_decode": Refused(Retention(priority=90)),
    "structured_outputs": Row(None, StructuredOutputs(regex="[0-9]+"), DRAWN),
    "chat_output": Row(None, ChatOutput(), DRAWN),
    "logprobs_mode": Row("raw", "processed", {**DRAWN, "temperature": 0.5, "logprobs": 1}),
}


def answer_of(llm: LLM, params: SamplingParams) -> tuple[Any, ...]:
    """Everything that an answer says; request ids and cache hits are not part of it."""
    output: RequestOutput = llm.generate(PROMPT, params)[0]
    assert output.error is None
    return output.prompt_logprobs, output.outputs


def test_every_field_has_its_row() -> None:
    assert set(ROWS) == {known.name for known in fields(SamplingParams)}


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if isinstance(row, Row)])
def test_two_values_of_a_field_give_two_answers(llm: LLM, name: str) -> None:
    row = ROWS[name]
    assert isinstance(row, Row)
    first = SamplingParams(**{**row.context, name: row.first})
    second = SamplingParams(**{**row.context, name: row.second})

    answer = answer_of(llm, first)

    assert answer == answer_of(llm, first)
    assert answer != answer_of(llm, second)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if isinstance(row, Refused)])
def test_what_is_not_honoured_is_refused_by_name(llm: LLM, name: str) -> None:
    row = ROWS[name]
    assert isinstance(row, Refused)
    with pytest.raises(RequestError) as refusal:
        llm.generate(PROMPT, SamplingParams(**{name: row.value}))
    assert refusal.value.param == name


EXACT: dict[str, Callable[[RequestOutput], bool]] = {
    "n": lambda output: [answer.index for answer in output.outputs] == [0, 1],
    "bad_words": lambda output: "aa" not in output.outputs[0].text,
    "max_tokens": lambda output: len(output.outputs[0].token_ids) == 5,
    "min_tokens": lambda output: len(output.outputs[0].token_ids) >= 5,
    "stop": lambda output: (output.outputs[0].text, output.outputs[0].stop_reason) == ("", "aaa"),
    "stop_token_ids": lambda output: (output.outputs[0].token_ids, output.outputs[0].stop_reason) == ([A], A),
    "include_stop_str_in_output": lambda output: output.outputs[0].text == "aaa",
    "ignore_eos": lambda output: output.outputs[0].token_ids == [EOS] * 24,
    "skip_special_tokens": lambda output: output.outputs[0].text == "<|im_start|>" * 24,
    "logit_bias": lambda output: output.outputs[0].text == "a" * 24,
    "logprobs": lambda output: all(len(entry.top_ids) == 3 for entry in output.outputs[0].logprobs or []),
    "prompt_logprob_start": lambda output: len(output.prompt_logprobs or []) == len(PROMPT) - 2,
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_the_second_value_does_what_its_field_says(llm: LLM, name: str) -> None:
    row = ROWS[name]
    assert isinstance(row, Row)
    [output] = llm.generate(PROMPT, SamplingParams(**{**row.context, name: row.second}))
    assert EXACT[name](output), output
