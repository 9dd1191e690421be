"""Write the token ids that transformers gives for tricky texts, for `tests/unit/tokens` to compare with.

    python tools/make_token_goldens.py MODEL.gguf tests/golden/tokens/NAME.json [--single-digits]

Needs the `oracle` extra (transformers, torch). The expected ids are of another implementation, so that a mistake of
ours can't hide in its own golden file. transformers does not read which word split a GGUF file names; SmolLM2's
published tokenizer cuts digits apart before the GPT-2 rule, which `--single-digits` puts back.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TEXTS = (
    "",
    "The capital of France is",
    "Hello world! Café déjà vu — 123 😊",
    "    \tfour spaces and a tab",
    "a",
    " a",
    "  a",
    "a ",
    "a  ",
    "   ",
    "\n",
    "\n\n",
    "\n\n\n \n",
    "line\r\nline\r\n",
    "\t\t\tif (x == 1) {\n\t\t\t\treturn;\n\t\t\t}",
    "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\n",
    "1234567890",
    "3.14159, 2,718 and 1e-9",
    "Ⅻ ½ ٣٤ 五",
    "I'm you're he'll WE'VE it'd",
    "don\u2019t \u201cquote\u201d \u2026",
    "HELLO hello HeLLo",
    "日本語のテキストと漢字",
    "中文分词测试\uff0c没有空格。",
    "한국어 문장입니다",
    "Привет, как дела?",
    "مرحبا بالعالم",
    "שלום עולם",
    "हिन्दी में पाठ",
    "ไทยไม่มีช่องว่าง",
    "👩‍👩‍👧 🐱 🏳️‍🌈 e\u0301 é",
    "\u00a0non-breaking\u2003em space\u200bzero width",
    "\ufeffbyte order mark",
    "\x00\x01\x7f control",
    "https://example.org/a?b=c&d=%20#frag",
    '{"key": [1, 2.5, null, true], "t": "\\n"}',
    "<table><tr><td>1</td></tr></table>",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<bos><eos><start_of_turn>user\nhi<end_of_turn>\n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!???...---===___***",
    "x = y +  z  ;   // three   gaps",
    "Supercalifragilisticexpialidocious antidisestablishmentarianism",
    "\U00010348 \U0001d54f 𠜎",
)


def main(gguf: Path, output: Path, *, has_single_digits: bool) -> None:
    """Encode every text with transformers' own reading of the GGUF file."""
    from tokenizers import pre_tokenizers  # noqa: PLC0415  (a tool of the oracle environment)
    from transformers import AutoTokenizer  # noqa: PLC0415  (a tool of the oracle environment)

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if has_single_digits:
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    rows = [{"text": text, "ids": tokenizer(text, add_special_tokens=False).input_ids} for text in TEXTS]
    lines = ",\n".join(json.dumps(row) for row in rows)
    output.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), has_single_digits="--single-digits" in sys.argv[3:])
