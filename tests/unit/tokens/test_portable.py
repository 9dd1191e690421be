"""A described tokenizer or template, made again, does what the first one does."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_engine import tiny_model
from support.tiny_tokenizers import byte_level, metaspace
from trivium.base.errors import ModelError
from trivium.tokens.chat import ChatTemplate
from trivium.tokens.load import load_tokenizer
from trivium.tokens.portable import read_template, read_tokenizer
from trivium.tokens.tokenizer import Tokenizer

MAKERS: list[Callable[[], Tokenizer]] = [byte_level, metaspace, lambda: load_tokenizer(tiny_model())]


def travelled(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer behind a wire."""
    return read_tokenizer(json.loads(json.dumps(tokenizer.describe())))


@pytest.mark.parametrize("make", MAKERS)
def test_every_id_and_every_property_is_the_same(make: Callable[[], Tokenizer]) -> None:
    own = make()
    other = travelled(own)
    assert other.special == own.special
    assert other.special_ids == own.special_ids
    assert (other.vocab_size, other.drops_first_space) == (own.vocab_size, own.drops_first_space)
    assert [other.token_bytes(id_) for id_ in range(own.vocab_size)] == [
        own.token_bytes(id_) for id_ in range(own.vocab_size)
    ]
    assert other.describe() == own.describe()


@pytest.mark.parametrize("make", MAKERS)
def test_texts_are_cut_the_same_way(make: Callable[[], Tokenizer]) -> None:
    own = make()
    other = travelled(own)

    @given(st.text() | st.text(alphabet="helo wé<s>/think "))
    def same(text: str) -> None:
        for adds in (False, True):
            assert other.encode(text, add_special_tokens=adds) == own.encode(text, add_special_tokens=adds)

    same()


def test_a_template_writes_the_same() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{{ pad_token }}{% endfor %}"
    )
    marks = ("<s>", "</s>")
    own = ChatTemplate({"default": source}, tokens={"pad_token": "<p>"}, bos_token=marks[0], eos_token=marks[1])
    other = read_template(json.loads(json.dumps(own.describe())))
    messages = [{"role": "user", "content": "x"}]
    assert other.render(messages) == own.render(messages) == "<s>user:x</s><p>"
    assert other.describe() == own.describe()


def test_what_describes_nothing_is_refused() -> None:
    good = byte_level().describe()
    for bad in ({}, {**good, "spelling": "eval"}, {**good, "encoder": "{}"}, {**good, "special": 5}, None):
        with pytest.raises(ModelError):
            read_tokenizer(bad)
    for bad in ({}, {"sources": {"default": 5}, "tokens": {}}, []):
        with pytest.raises(ModelError):
            read_template(bad)
