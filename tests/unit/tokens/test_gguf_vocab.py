"""What GGUF metadata says, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_tokenizers import PIECES, byte_level, byte_level_metadata, metaspace, metaspace_metadata
from trivium.base.errors import CheckpointError, ModelError
from trivium.tokens.gguf_vocab import GgufVocab, build_tokenizer, merges_from_scores

NO_SPACE = metaspace(add_space_prefix=False)


def test_end_tokens_are_those_of_the_text_the_turn_and_the_message() -> None:
    assert byte_level(eot_token_id=1, eom_token_id=264).eos_ids == (264, 1)


def test_sentencepiece_files_begin_texts_unless_they_say_otherwise() -> None:
    assert metaspace().encode("he", add_special_tokens=True)[0] == 1
    assert 1 not in metaspace(add_bos_token=False).encode("he", add_special_tokens=True)


def test_byte_level_files_begin_texts_only_where_their_word_split_does() -> None:
    assert byte_level().special.prefix == ()
    assert byte_level(pre="llama-bpe").special.prefix == (263,)
    assert byte_level(pre="llama-bpe", add_bos_token=False).special.prefix == ()


def test_without_kinds_the_named_ids_are_special() -> None:
    assert byte_level(token_type=None).special_ids == (263, 264)


def test_an_unknown_word_split_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"unknown tokenizer.ggml.pre 'newest'; known are: .*qwen2.*--tokenizer"):
        byte_level(pre="newest")


def test_an_unknown_kind_of_tokenizer_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match="'bert' in the GGUF file; known are: gpt2, llama"):
        byte_level(model="bert")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "holds no tokenizer"),
        ({"token_type": [1]}, "token_type has 1 entries for 266 tokens"),
        ({"merges": None}, "no merges"),
        ({"merges": ["ab"]}, "'ab' is not two tokens"),
        ({"merges": ["q zz"]}, "contradicts itself"),
    ],
)
def test_a_broken_vocabulary_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        build_tokenizer(byte_level_metadata(**changes))


def test_a_sentencepiece_file_without_scores_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no scores"):
        build_tokenizer(metaspace_metadata(scores=None))


def test_special_ids_outside_the_vocabulary_are_no_ids() -> None:
    assert byte_level(bos_token_id=10**6, add_bos_token=True).special.prefix == ()


def test_digits_are_cut_apart_where_the_word_split_says_so() -> None:
    cut, whole = (byte_level(pre=pre, **TWELVE) for pre in ("smollm", "gpt-2"))
    assert cut.encode("12", add_special_tokens=False) == [ord("1"), ord("2")]
    assert whole.encode("12", add_special_tokens=False) == [266]


def test_qwen_texts_are_composed_first() -> None:
    assert byte_level(pre="qwen2").encode("e\u0301", add_special_tokens=False) == [261]
    assert len(byte_level(pre="gpt-2").encode("e\u0301", add_special_tokens=False)) == 3


def test_unused_tokens_are_never_written_by_a_text() -> None:
    assert 265 not in byte_level(pre="llama-bpe").encode("[PAD]", add_special_tokens=False)


def test_an_unused_id_in_the_middle_hides_no_other() -> None:
    kinds = byte_level_metadata()["tokenizer.ggml.token_type"]
    tokenizer = byte_level(token_type=[*kinds[:7], 5, *kinds[8:265], 1])
    assert (tokenizer.token_bytes(7), tokenizer.token_bytes(265)) == (b"", b"[PAD]")


def test_among_merges_of_one_score_the_longer_left_part_goes_first() -> None:
    values = {"tokens": ["a", "aa", "aaa"], "token_type": [1, 1, 1]}
    vocab = GgufVocab.read({f"tokenizer.ggml.{key}": value for key, value in values.items()})
    assert merges_from_scores(vocab, [0.0, -2.0, -1.0]) == [("aa", "a"), ("a", "aa"), ("a", "a")]


def test_tokens_of_phi_3_swallow_the_white_space_behind_them() -> None:
    phi3 = build_tokenizer(metaspace_metadata() | {"general.architecture": "phi3"})
    think, end = phi3.token_id("<think>"), phi3.token_id("</s>")
    assert phi3.encode("<think>\n </s>", add_special_tokens=False) == [think, end]
    assert metaspace().encode("<think>\n</s>", add_special_tokens=False) != [think, end]


def test_a_space_is_put_behind_every_added_token_too() -> None:
    tokenizer = metaspace()
    ids = tokenizer.encode("<s>hello", add_special_tokens=False)
    assert [tokenizer.token_bytes(id_) for id_ in ids] == [b"<s>", b" hello"]


def _twelve() -> dict[str, object]:
    plain = byte_level_metadata()
    return {
        "tokens": [*plain["tokenizer.ggml.tokens"], "12"],
        "token_type": [*plain["tokenizer.ggml.token_type"], 1],
        "merges": [*plain["tokenizer.ggml.merges"], "1 2"],
    }


TWELVE = _twelve()


def by_definition(text: str) -> list[str]:
    """SentencePiece BPE as it is defined: merge the adjacent pair whose union scores best, leftmost among equals."""
    scores = {piece: -index for index, piece in enumerate(PIECES)}
    parts = list(text.replace(" ", "\u2581"))
    while True:
        pairs = [(-scores[a + b], index) for index, (a, b) in enumerate(pairwise(parts))
                 if a + b in scores]  # fmt: skip
        if not pairs:
            return parts
        index = min(pairs)[1]
        parts[index : index + 2] = [parts[index] + parts[index + 1]]


@given(st.text(st.sampled_from("helo wé"), max_size=16))
def test_merges_from_scores_cut_texts_as_sentencepiece_defines_it(text: str) -> None:
    ids = NO_SPACE.encode(text, add_special_tokens=False)
    cut = [NO_SPACE.token_bytes(id_).decode() for id_ in ids]
    assert cut == [part.replace("\u2581", " ") for part in by_definition(text)]
