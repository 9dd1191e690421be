"""Tokenizers and chat templates against the programs that define them: sentencepiece and transformers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, processors

from support.tiny_tokenizers import BYTE_BOS, BYTE_EOS, byte_level
from trivium.tokens.chat import ChatTemplate
from trivium.tokens.gguf_vocab import build_tokenizer
from trivium.tokens.load import load_tokenizer

pytestmark = pytest.mark.oracle
sentencepiece = pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")

TEXT = (Path(__file__).parents[1] / "golden" / "texts" / "declaration.txt").read_text(encoding="utf-8")
USER_DEFINED = ["<think>", "\n", "\n\n", "▁▁", "▁▁▁▁"]


def train(vocab_size: int) -> Any:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")),
        model_writer=model,
        vocab_size=vocab_size,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=USER_DEFINED,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def as_gguf(theirs: Any) -> dict[str, Any]:
    """Write a vocabulary as converters do: user-defined tokens with spaces, not U+2581."""
    ids = range(theirs.get_piece_size())
    pieces = [theirs.id_to_piece(id_) for id_ in ids]
    kinds = [
        2 if theirs.is_unknown(id_)
        else 3 if theirs.is_control(id_)
        else 6 if theirs.is_byte(id_)
        else 4 if pieces[id_] in USER_DEFINED
        else 1
        for id_ in ids
    ]  # fmt: skip
    tokens = [piece.replace("▁", " ") if kinds[id_] == 4 else piece for id_, piece in enumerate(pieces)]
    values = {"model": "llama", "tokens": tokens, "token_type": kinds, "add_space_prefix": False}
    values |= {"scores": [theirs.get_score(id_) for id_ in ids], "unknown_token_id": 0}
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


THEIRS = train(700)
OURS = build_tokenizer(as_gguf(THEIRS))


@settings(max_examples=400, deadline=None)
@given(st.text(st.sampled_from("aeinrstTh  \n▁éあ😊<1,"), max_size=40))
def test_ids_are_those_of_sentencepiece_for_any_text(text: str) -> None:
    assert OURS.encode(text, add_special_tokens=False) == THEIRS.encode(text)


def test_ids_are_those_of_sentencepiece_for_prose() -> None:
    for text in (TEXT[start : start + 1 + start % 80] for start in range(0, len(TEXT), 23)):
        assert OURS.encode(text, add_special_tokens=False) == THEIRS.encode(text)


@pytest.mark.parametrize("single", ["$A", "<s> $A", "<s> $A </s>"])
def test_frames_are_those_of_transformers(tmp_path: Path, single: str) -> None:
    encoder = byte_level()._encoder
    encoder.decoder = decoders.ByteLevel()
    ends = [("<s>", BYTE_BOS), ("</s>", BYTE_EOS)]
    encoder.post_processor = processors.TemplateProcessing(single=single, special_tokens=ends)
    encoder.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("hello w", "", "Héllo <think> 😊"):
        ids = ours.encode(text, add_special_tokens=True)
        assert ids == theirs(text).input_ids
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hé <b>&"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, "ü"]}}}]},
    {"role": "tool", "content": '{"y": 2}'},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d'\"<", "parameters": {"type": "object"}}}]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOL_CALLS = (
    "{{- bos_token }}\n{%- if messages[0]['role'] == 'system' %}\n    {%- set system = messages[0].content | trim %}\n"
    "    {%- set messages = messages[1:] %}\n{%- endif %}\n{{- system }}\n{%- for m in messages %}\n"
    "    {%- if 'tool_calls' in m %}\n        {%- for call in m.tool_calls %}\n"
    "            {{- '<tool_call>' ~ (call.function | tojson) ~ '</tool_call>' }}\n        {%- endfor %}\n"
    "    {%- elif m.role == 'tool' and loop.last %}\n        {{- m.content }}\n    {%- endif %}\n{%- endfor %}"
)
NAMESPACES = (
    "{% set ns = namespace(last='') %}{% for m in messages %}{% if loop.first or loop.previtem.role != m.role %}"
    "{% set ns.last = m.role %}{% endif %}{{ ns.last | upper }} {{ loop.revindex0 }}\n{% endfor %}"
    "{% if tools %}{{ tools | map(attribute='function') | list | tojson(indent=4) }}{% endif %}{{ eos_token }}"
)
MACROS = (
    "{%- macro say(who, what='') -%}\n[{{ who }}] {{ what }}\n{% endmacro -%}\n{% for m in messages %}\n"
    "  {%- generation %}{{ say(m.role, what=m.content[:3]) }}{% endgeneration %}\n"
    "  {% if m.role == 'user' %}{% continue %}{% endif %}\n- {{ m.get('x', 'none') }}\n{% endfor %}"
)
TEMPLATES = (CHATML, TOOL_CALLS, NAMESPACES, MACROS)


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("adds_prompt", [True, False])
def test_prompts_are_those_of_transformers(source: str, tools: list[dict[str, Any]] | None, adds_prompt: bool) -> None:
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level()._encoder, **names)
    theirs.chat_template = source
    expected = theirs.apply_chat_template(MESSAGES, tools=tools, add_generation_prompt=adds_prompt, tokenize=False)
    assert ChatTemplate(source, **names).render(MESSAGES, tools=tools, add_generation_prompt=adds_prompt) == expected
