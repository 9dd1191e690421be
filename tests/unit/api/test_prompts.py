"""What `generate` and `chat` accept, and how they refuse the rest: typed, with what was given and what is expected."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.tiny_engine import tiny_model
from trivium import LLM, SamplingParams
from trivium.api.prompts import ChatForm, PromptReader
from trivium.base.errors import ConfigError, InvalidParameterError, RequestError, TemplateError, UnsupportedFeatureError

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
HELLO = {"role": "user", "content": "hello"}
IDS = [75, 72, 79]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1) as own:
        yield own


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("ab", [("ab", None)]),
        (["ab", "c"], [("ab", None), ("c", None)]),
        (IDS, [(None, IDS)]),
        (tuple(IDS), [(None, IDS)]),
        (range(5, 8), [(None, [5, 6, 7])]),
        (array("i", IDS), [(None, IDS)]),
        ([np.int64(75), np.int32(72)], [(None, [75, 72])]),
        ([IDS, [3]], [(None, IDS), (None, [3])]),
        ({"prompt": "ab"}, [("ab", None)]),
        ({"prompt_token_ids": IDS}, [(None, IDS)]),
        ({"prompt_token_ids": IDS, "prompt": None}, [(None, IDS)]),
        (
            [{"prompt": "ab"}, {"prompt_token_ids": IDS}, "c", [3]],
            [("ab", None), (None, IDS), ("c", None), (None, [3])],
        ),
    ],
)
def test_every_form_of_a_prompt_is_honoured(llm: LLM, prompts: Any, expected: list[tuple[str | None, Any]]) -> None:
    outputs = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in outputs] == [text for text, _ in expected]
    for output, (text, ids) in zip(outputs, expected, strict=True):
        known = ids if text is None else llm.get_tokenizer().encode(text, add_special_tokens=True)
        assert output.prompt_token_ids == known
        assert output.outputs == llm.generate([known], GREEDY)[0].outputs


def test_a_cache_salt_keeps_prefixes_apart(llm: LLM) -> None:
    prompt = {"prompt": "salted " * 8, "cache_salt": "mine"}
    cached = [llm.generate(one, GREEDY)[0].num_cached_tokens for one in (prompt, prompt, {**prompt, "cache_salt": "x"})]
    assert cached[0] == cached[2] == 0 < cached[1]


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (None, "prompts is None; it must be a text, a list of token ids"),
        (5, "prompts is 5 (int); it must be a text"),
        (b"ab", "prompts is b'ab' (bytes); it must be a text"),
        ({"a", "b"}, "(set); it must be a text"),
        ([1.5], "prompts[0] is 1.5 (float); it must be a token id"),
        ([3, True], "prompts[1] is True (bool); it must be a token id"),
        ([None], "prompts[0] is None; it must be a token id"),
        ([3, "a"], "prompts[1] is 'a' (str); it must be a token id"),
        (["a", 3], "prompts[1] is 3 (int); it must be a text"),
        ([[3], [1.0]], "prompts[1][0] is 1.0 (float); it must be a token id"),
        ({}, "prompts must have either prompt or prompt_token_ids; it has neither"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "it has prompt and prompt_token_ids"),
        ({"prompt": 1}, "prompts['prompt'] is 1 (int); it must be a text"),
        ({"prompt": [1]}, "prompts['prompt'] is [1] (list); it must be a text"),
        ({"prompt_token_ids": "a"}, "prompts['prompt_token_ids'] is 'a' (str); it must be a list of token ids"),
        ([{"prompt_token_ids": [True]}], "prompts[0]['prompt_token_ids'][0] is True (bool)"),
        ({"prompt": "a", "cache_salt": 3}, "prompts['cache_salt'] is 3 (int); it must be a text"),
        ({"promt": "a"}, "prompts has the key 'promt'; known are prompt, prompt_token_ids, cache_salt"),
        (HELLO, "conversations go to chat"),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "prompts['multi_modal_data'] is not supported"),
        ("", "the prompt has no tokens"),
        ([[]], "the prompt has no tokens"),
        ([-1], "outside the vocabulary"),
        (["x" * 10**5, 7.0], "prompts[1] is 7.0"),
    ],
)
def test_other_forms_are_refused_with_what_was_given_and_what_is_expected(llm: LLM, prompts: Any, words: str) -> None:
    with pytest.raises(RequestError) as refusal:
        llm.generate(prompts, GREEDY)
    assert words in str(refusal.value)
    assert refusal.value.param == "prompt"
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("prompt", [["a", "b"], [[3]], None, 5])
def test_a_stream_takes_one_prompt(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidParameterError, match="prompt"):
        llm.stream(prompt, GREEDY)


def test_a_stream_refuses_before_it_is_read(llm: LLM) -> None:
    with pytest.raises(InvalidParameterError, match="temperature"):
        llm.stream("a", SamplingParams(temperature=-1.0))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temperature": 0}, "sampling_params is {'temperature': 0} (dict); it must be a SamplingParams"),
        (0.5, "sampling_params is 0.5 (float)"),
        ([None], "sampling_params[0] is None"),
        ([GREEDY, {}], "there are 1 prompts and 2 sampling_params"),
        ([{"temperature": 0}], "sampling_params[0] is {'temperature': 0} (dict)"),
    ],
)
def test_parameters_of_another_type_are_refused(llm: LLM, params: Any, words: str) -> None:
    for ask in (lambda: llm.generate("a", params), lambda: llm.chat([HELLO], params)):
        with pytest.raises(InvalidParameterError) as refusal:
            ask()
        assert words in str(refusal.value)
        assert refusal.value.param == "sampling_params"


def test_a_mapping_of_parameters_learns_how_to_make_a_record(llm: LLM) -> None:
    with pytest.raises(InvalidParameterError, match=r"SamplingParams\(\*\*given\) makes one"):
        llm.generate("a", {"temperature": 0})  # type: ignore[arg-type]


def test_a_start_of_prompt_logprobs_beyond_the_prompt_is_refused_with_the_numbers(llm: LLM) -> None:
    last = SamplingParams(max_tokens=1, prompt_logprobs=0, prompt_logprob_start=2)
    assert len(llm.generate([IDS], last)[0].prompt_logprobs or []) == 1
    with pytest.raises(
        InvalidParameterError, match="is 3; the prompt has 3 tokens, so it must be at most 2"
    ) as refusal:
        llm.generate([IDS], SamplingParams(max_tokens=1, prompt_logprobs=0, prompt_logprob_start=3))
    assert refusal.value.param == "prompt_logprob_start"


# -- conversations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("hi", "messages: it is 'hi'; it must be a list of messages"),
        (None, "messages: it is None; it must be a list of messages"),
        ([], "messages: it is empty"),
        ([[]], "messages[0]: it is empty"),
        (HELLO, "it must be a list of messages"),
        (["hi"], "messages[0]: it is 'hi'; it must be an object with role and content"),
        ([{"role": "user"}], "messages[0].content: it is missing; it must be a text"),
        ([{"content": "hi"}], "messages[0].role: it is None; it must be assistant, developer, system, tool, user"),
        ([{"role": "user", "content": 5}], "messages[0].content: it is 5; it must be a text or a list of text parts"),
        ([HELLO, {**HELLO, "mood": "good"}], "messages[1]: unknown key 'mood'"),
        ([[HELLO], [{"role": "user"}]], "messages[1][0].content: it is missing"),
        ([[HELLO], HELLO], "messages[0]: it is [{"),
    ],
)
def test_conversations_of_another_shape_are_refused(llm: LLM, messages: Any, words: str) -> None:
    with pytest.raises(InvalidParameterError) as refusal:
        llm.chat(messages, GREEDY)
    assert words in str(refusal.value)
    assert refusal.value.param == "messages"


def test_pictures_are_refused(llm: LLM) -> None:
    picture = {"type": "image_url", "image_url": {"url": "http://localhost/a.png"}}
    with pytest.raises(UnsupportedFeatureError, match="text only"):
        llm.chat([{"role": "user", "content": [picture]}], GREEDY)


def test_one_conversation_or_many(llm: LLM) -> None:
    written = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert [output.prompt for output in llm.chat([HELLO], GREEDY)] == [written]
    two = llm.chat(([HELLO], (HELLO, HELLO)), GREEDY)
    assert [(output.prompt or "").count("hello") for output in two] == [1, 2]
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert "hel\nlo" in (llm.chat([{"role": "user", "content": parts}], GREEDY)[0].prompt or "")


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"add_generation_prompt": True}, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, "<|im_start|>user\nhello<|im_end|>\n"),
        ({"continue_final_message": True}, "<|im_start|>user\nhello"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "<|im_start|>user\nhello"),
        ({"chat_template": "{{ messages[0].content }}!"}, "hello!"),
        ({"chat_template": "{{ mood }}", "chat_template_kwargs": {"mood": "good"}}, "good"),
        ({"tools": []}, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_fields_of_chat_act(llm: LLM, fields: dict[str, Any], prompt: str) -> None:
    [output] = llm.chat([HELLO], GREEDY, **fields)
    assert output.prompt == prompt
    assert output.prompt_token_ids == llm.get_tokenizer().encode(prompt, add_special_tokens=False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template": 5}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": "mood"}, "chat_template_kwargs"),
    ],
)
def test_fields_of_chat_are_refused_by_name(llm: LLM, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refusal:
        llm.chat([HELLO], GREEDY, **fields)
    assert refusal.value.param == param
    assert param in str(refusal.value)


def test_a_template_that_is_no_file_is_refused(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        llm.chat([HELLO], GREEDY, chat_template="nowhere")


def test_a_model_without_template_says_so(llm: LLM) -> None:
    reader = PromptReader(replace(llm.frontend, chat_template=None))
    with pytest.raises(TemplateError, match="chat_template="):
        reader.chats([HELLO], ChatForm())
    assert reader.chat([HELLO], ChatForm(chat_template="{{ messages[0].content }}")).text == "hello"
