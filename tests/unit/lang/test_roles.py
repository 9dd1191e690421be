"""Roles in the words of templates of several makes, turn by turn."""

from __future__ import annotations

import pytest

from trivium.base.errors import TemplateError
from trivium.lang.roles import Roles
from trivium.tokens.chat import ChatTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEFAULT_SYSTEM = "{% if messages[0].role != 'system' %}<|im_start|>system\nBe good<|im_end|>\n{% endif %}" + CHATML
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content | trim }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
INST = (
    "{% if messages[0].role == 'system' %}{% set sys = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}<s>"
    "{% for m in rest %}{% if m.role == 'user' %}[INST] {{ sys if loop.first else '' }}{{ m.content }} [/INST]"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
BACKWARDS = "{% for m in messages | reverse %}[{{ m.content }}]{% endfor %}"


def written(source: str, *turns: tuple[str, str], by_model: bool = True) -> str:
    """Write turns; assistants' are the model's."""
    template = ChatTemplate(source)
    roles = Roles(render=lambda messages, answers: template.render(messages, add_generation_prompt=answers))
    text = ""
    for role, content in turns:
        roles.begin(role)
        if role == "assistant" and by_model:
            text += roles.before_model() + content
            roles.wrote(content)
        else:
            text += roles.write(content)
        text += roles.end(role)
    return text


def rendered(source: str, *turns: tuple[str, str]) -> str:
    messages = [{"role": role, "content": content} for role, content in turns]
    return ChatTemplate(source).render(messages, add_generation_prompt=False)


TURNS = (("system", "be brief"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))


@pytest.mark.parametrize("source", [CHATML, DEFAULT_SYSTEM, INST])
@pytest.mark.parametrize("turns", [TURNS, TURNS[1:], TURNS[:2], TURNS[1:3]], ids=len)
def test_turns_are_what_the_template_writes_at_once(source: str, turns: tuple[tuple[str, str], ...]) -> None:
    assert written(source, *turns) == rendered(source, *turns)
    assert written(source, *turns, by_model=False) == rendered(source, *turns)


def test_what_was_written_stays_as_it_is() -> None:
    text = written(THINKING, ("user", " a "), ("assistant", "hm</think>b"), ("user", "c"))
    assert text == (
        "<|im_start|>user\n a <|im_end|>\n<|im_start|>assistant\n<think>\nhm</think>b<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n"
    )


def test_an_answer_that_the_author_wrote_has_no_opening_of_the_models() -> None:
    assert written(THINKING, ("user", "a"), ("assistant", "b"), by_model=False).endswith("assistant\nb<|im_end|>\n")


def test_an_empty_message_is_a_message() -> None:
    template = ChatTemplate(CHATML)
    roles = Roles(render=lambda messages, answers: template.render(messages, add_generation_prompt=answers))
    roles.begin("user")
    assert roles.end("user") == "<|im_start|>user\n<|im_end|>\n"


@pytest.mark.parametrize(("source", "turns"), [(NO_SYSTEM, TURNS), (BACKWARDS, TURNS[1:])])
def test_what_cannot_be_written_turn_by_turn_is_refused(source: str, turns: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(TemplateError):
        written(source, *turns)


def test_forked_roles_go_on_by_themselves() -> None:
    template = ChatTemplate(CHATML)
    roles = Roles(render=lambda messages, answers: template.render(messages, add_generation_prompt=answers))
    roles.begin("user")
    roles.write("a")
    other = roles.fork()
    roles.end("user")
    other.write("b")
    other.end("user")
    assert (roles.messages, other.messages) == ([{"role": "user", "content": "a"}], [{"role": "user", "content": "ab"}])
