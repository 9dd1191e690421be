"""What templates find, what messages become, and how failures are told."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.tiny_tokenizers import byte_level, byte_level_metadata
from trivium.base.errors import ConfigError, TemplateError
from trivium.tokens.chat import ChatTemplate, find_template

CHATML = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = [{"role": "user", "content": "hi"}]
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% endfor %}"
)


def rendered(source: str, messages: list[dict[str, object]] | None = None, **variables: object) -> str:
    return ChatTemplate(source, **TOKENS).render(messages or USER, **variables)  # type: ignore[arg-type]


def test_messages_become_a_prompt() -> None:
    assert rendered(CHATML) == "<|user|>hi\n<|assistant|>"
    assert rendered(CHATML, add_generation_prompt=False) == "<|user|>hi\n"


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_a_missing_content_is_the_empty_text(content: dict[str, object]) -> None:
    assert rendered(CHATML, [{"role": "assistant", **content}]).startswith("<|assistant|>\n")


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert rendered(CHATML, [{"role": "user", "content": parts}]).startswith("<|user|>a\nb\n")


def test_a_part_that_is_no_text_is_refused() -> None:
    with pytest.raises(TemplateError, match="content part of type 'image_url'"):
        rendered(CHATML, [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


def test_two_system_messages_are_both_kept() -> None:
    twice = [{"role": "system", "content": "one"}, {"role": "system", "content": "two"}, *USER]
    assert rendered(CHATML, twice) == "<|system|>one\n<|system|>two\n<|user|>hi\n<|assistant|>"


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (["system", "user"], "System role not supported"),
        (["system", "system"], "System role not supported"),
        (["user", "user"], "Conversation roles must alternate user/assistant/user/assistant/..."),
        (["assistant"], "Conversation roles must alternate user/assistant/user/assistant/..."),
    ],
)
def test_a_refusal_carries_the_templates_own_words(roles: list[str], message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(STRICT, [{"role": role, "content": "x"} for role in roles])
    assert (str(caught.value), caught.value.http_status) == (message, 400)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ {'é': '<&>'} | tojson }}", '{"é": "<&>"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=True) }}", '{"a": 2, "b": 1}'),
        ("{% for i in '012' %}{% if i == '1' %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% for i in '012' %}{% if i == '1' %}{% break %}{% endif %}{{ i }}{% endfor %}", "0"),
        ("a{% generation %}b{{ 1 }}{% endgeneration %}c", "ab1c"),
        ("{{ tools is none }}{{ documents is none }}{{ date_string is defined }}", "TrueTrueFalse"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{{ messages[0].missing }}|{{ missing }}", "|"),
        ("{{ ' x ' | trim }}{{ 'a' ~ 1 ~ none }}{{ 'a,b'.split(',') | last }}", "xa1Noneb"),
    ],
)  # fmt: skip
def test_templates_find_what_they_expect(source: str, expected: str) -> None:
    assert rendered(source) == expected


def test_templates_can_ask_for_the_time() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 3, 5, tzinfo=UTC))
    assert template.render(USER) == "05 Mar 2026"


def test_further_variables_reach_the_template_but_replace_nothing_of_ours() -> None:
    ours = {"bos_token": "x"}
    assert rendered("{{ enable_thinking }}{{ bos_token }}", enable_thinking=False, **ours) == "False<s>"


def test_messages_cannot_be_changed_by_a_template() -> None:
    with pytest.raises(TemplateError, match="unsafe"):
        rendered("{{ messages.append(1) }}")


def test_requests_with_tools_use_the_template_for_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools[0].name }}"})
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[{"name": "f"}]) == "f"


def test_a_failure_names_what_the_template_tripped_over() -> None:
    with pytest.raises(TemplateError, match="the chat template failed: 'dict object' has no attribute 'foo'"):
        rendered("{{ messages[0].foo.bar }}")


@pytest.mark.parametrize("source", ["{% if %}", "{{ a b }}", "{% for x in y %}", "(" * 5 + "{{" + "(" * 2000 + "}}"])
def test_a_template_that_is_not_jinja_is_a_configuration_error(source: str) -> None:
    with pytest.raises(ConfigError, match="chat template 'default'"):
        ChatTemplate(source)


def test_the_begin_token_of_a_rendered_chat_is_not_doubled() -> None:
    tokenizer = byte_level(add_bos_token=True)
    template = find_template(metadata=byte_level_metadata() | GGUF, tokenizer=tokenizer)
    assert template is not None
    prompt = template.render([{"role": "user", "content": "he"}])
    ids = tokenizer.encode(prompt, add_special_tokens=True)
    assert ids == tokenizer.encode(prompt, add_special_tokens=False)
    assert ids == [263, 256, 264]


GGUF = {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}


def test_a_model_without_template_has_none(tmp_path: Path) -> None:
    assert find_template(directory=tmp_path, metadata={}) is None
