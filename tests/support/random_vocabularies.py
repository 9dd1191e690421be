"""Small vocabularies drawn at random, of both kinds; their bytes are the same, their longer tokens are not."""

from __future__ import annotations

import random

from support.tiny_tokenizers import LETTER_OF_BYTE, byte_level, metaspace
from trivium.tokens.tokenizer import Tokenizer
from trivium.tokens.vocab import METASPACE

_LETTERS = 'abcdehilnorstw :,"{}_0123!'


def random_byte_level(seed: int, num_merged: int) -> tuple[Tokenizer, int]:
    """Build a byte-level tokenizer with tokens of random merges; returns it and its end token."""
    dice = random.Random(seed)  # noqa: S311  (a test's vocabulary)
    tokens, merges = [LETTER_OF_BYTE[byte] for byte in range(256)], []
    pieces = [LETTER_OF_BYTE[byte] for byte in (_LETTERS + "é").encode()]
    for left, right in ((dice.choice(pieces), dice.choice(pieces)) for _ in range(num_merged)):
        if left + right not in tokens:
            tokens.append(left + right)
            pieces.append(left + right)
            merges.append(f"{left} {right}")
    end_id = len(tokens) + 1
    made = byte_level(
        tokens=[*tokens, "<s>", "</s>"],
        token_type=[1] * len(tokens) + [3, 3],
        merges=merges,
        pre=dice.choice(["gpt-2", "llama-bpe", "qwen2"]),
        bos_token_id=end_id - 1,
        eos_token_id=end_id,
    )
    return made, end_id


def random_metaspace(seed: int, num_merged: int) -> tuple[Tokenizer, int]:
    """Build a SentencePiece tokenizer with random pieces and scores; returns it and its end token."""
    dice = random.Random(seed)  # noqa: S311
    pieces = [*_LETTERS.replace(" ", METASPACE), "é"]
    for _ in range(num_merged):
        if (piece := dice.choice(pieces) + dice.choice(pieces)) not in pieces:
            pieces.append(piece)
    scores = [-float(place) for place in range(len(pieces))]
    dice.shuffle(scores)
    made = metaspace(
        tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces],
        token_type=[2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        scores=[0.0] * 259 + scores,
    )
    return made, 2
