"""How byte-level tokenizers of GGUF files cut text into words before merging.

A GGUF file names its rule (`tokenizer.ggml.pre`) instead of holding it. This is the table of the rules we know;
an unknown name is an error that lists them, because a guess would give plausible but wrong ids.
Source: the models' published tokenizer files; names and defaults as in GGUF converters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trivium.base.registry import Registry

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSplit:
    """One rule for cutting text into words, with what always comes with it."""

    patterns: tuple[str, ...]
    """Regular expressions, applied one after the other to the pieces of the previous; matches and gaps are words."""
    takes_whole_words: bool = False
    """Whether a word that is a token stays one, whatever the merges say."""
    adds_bos: bool = False
    """Whether a text begins with the begin token when the file doesn't say."""
    normal_form: Literal["NFC"] | None = None
    """Unicode normal form applied first."""


WORD_SPLITS: Registry[WordSplit] = Registry("tokenizer.ggml.pre")

_RULES: tuple[tuple[tuple[str, ...], WordSplit], ...] = (
    (("gpt-2", "phi-2"), WordSplit(patterns=(_GPT2,))),
    (("olmo",), WordSplit(patterns=(_GPT2,), normal_form="NFC")),
    (("smollm", "starcoder", "refact"), WordSplit(patterns=(r"\p{N}", _GPT2))),
    (
        ("llama-bpe", "llama3", "llama-v3"),
        WordSplit(patterns=(_LLAMA3,), takes_whole_words=True, adds_bos=True),
    ),
    (("dbrx",), WordSplit(patterns=(_LLAMA3,))),
    (("qwen2",), WordSplit(patterns=(_QWEN2,), normal_form="NFC")),
    (("deepseek-r1-qwen",), WordSplit(patterns=(_QWEN2,))),
    (("tekken",), WordSplit(patterns=(_TEKKEN,), takes_whole_words=True, adds_bos=True)),
    (("gpt-4o",), WordSplit(patterns=(_GPT4O,))),
    (("default",), WordSplit(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
)

for _names, _rule in _RULES:
    for _name in _names:
        WORD_SPLITS.register(_name)(_rule)
