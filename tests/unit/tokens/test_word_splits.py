"""The rules that cut text into words, as regular expressions that the library accepts."""

from __future__ import annotations

import pytest
from tokenizers import Regex, pre_tokenizers

from trivium.tokens.word_splits import WORD_SPLITS

CASES = {
    "gpt-2": ("I'm  12ab, x\n\n y", ["I", "'m", " ", " 12", "ab", ",", " x", "\n\n", " y"]),
    "smollm": ("I'm  12ab ½", ["I", "'m", "  ", "1", "2", "ab", " ", "½"]),
    "llama-bpe": ("I'M  12345,\nx", ["I", "'M", " ", " ", "123", "45", ",\n", "x"]),
    "qwen2": ("a123 $x", ["a", "1", "2", "3", " $", "x"]),
    "gpt-4o": ("HelloWorld's", ["Hello", "World's"]),
    "tekken": ("HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
    "default": ("a1234, b", ["a", "123", "4", ",", " b"]),
}


def words(name: str, text: str) -> list[str]:
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in WORD_SPLITS[name].patterns]
    return [word for word, _ in pre_tokenizers.Sequence(cuts).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", sorted(CASES))
def test_text_is_cut_into_these_words(name: str) -> None:
    text, expected = CASES[name]
    assert words(name, text) == expected


@pytest.mark.parametrize("name", sorted(WORD_SPLITS))
def test_nothing_is_lost_between_words(name: str) -> None:
    text = "  Hé12345's \r\n\t日本٣ <|x|>\u00a0…\n\n\n end  "
    assert "".join(words(name, text)) == text
