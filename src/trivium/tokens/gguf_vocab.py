"""A tokenizer from the metadata of a GGUF file.

GGUF stores the vocabulary, not the tokenizer: tokens with kinds, and either merges plus the name of a word split
(byte-level BPE, `gpt2`) or scores (SentencePiece BPE, `llama`). This module puts the missing parts back.
Source: GGUF specification, section on tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trivium.base.errors import CheckpointError, ConfigError, ModelError
from trivium.base.ids import TokenId
from trivium.tokens.tokenizer import SpecialTokens, Tokenizer
from trivium.tokens.vocab import TokenKind, byte_level_bytes, metaspace_bytes, plain_bytes
from trivium.tokens.word_splits import WORD_SPLITS, WordSplit

_SPECIAL_KINDS = (TokenKind.CONTROL, TokenKind.UNKNOWN)
_ID_KEYS = ("bos", "eos", "eot", "eom", "unknown", "padding", "separator", "mask")
"""Names of special ids in the file."""
_KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")
"""Phi-3's added tokens swallow white space behind them, save for these; a GGUF file can't say so.

Source: the published tokenizer.json of Phi-3 mini."""


@dataclass(frozen=True, slots=True)
class GgufVocab:
    """The tokenizer part of a GGUF file's metadata, checked."""

    model: str
    tokens: Sequence[str]
    """[V] stored texts."""
    kinds: Sequence[int]
    """[V] `TokenKind` numbers."""
    metadata: Mapping[str, Any]

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> GgufVocab:
        """Check and take out what is needed.

        Raises:
            CheckpointError: There is no vocabulary, or its columns have different lengths.
        """
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not tokens:
            raise CheckpointError("the GGUF file holds no tokenizer (no tokenizer.ggml.tokens)")
        kinds = metadata.get("tokenizer.ggml.token_type")
        if kinds is None:
            kinds = _guess_kinds(metadata, len(tokens))
        _check_length("token_type", kinds, len(tokens))
        return cls(str(metadata.get("tokenizer.ggml.model", "")), tokens, [int(kind) for kind in kinds], metadata)

    def special_id(self, name: str) -> TokenId | None:
        """Return the id stored as `tokenizer.ggml.<name>_token_id`, or `None` where it is absent or out of range."""
        id_ = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return TokenId(int(id_)) if id_ is not None and 0 <= int(id_) < len(self.tokens) else None

    def flag(self, name: str, *, default: bool) -> bool:
        """Return the truth value stored as `tokenizer.ggml.<name>`."""
        return bool(self.metadata.get(f"tokenizer.ggml.{name}", default))

    def ids_of(self, *kinds: TokenKind) -> list[int]:
        """Return the ids of these kinds, ascending."""
        return [id_ for id_, kind in enumerate(self.kinds) if kind in kinds]

    def special_tokens(self, *, adds_bos: bool) -> SpecialTokens:
        """Put the frame of a text together; `adds_bos` holds where the file doesn't say."""
        bos, eos = self.special_id("bos"), self.special_id("eos")
        ends = tuple(dict.fromkeys(id_ for name in ("eos", "eot", "eom") if (id_ := self.special_id(name)) is not None))
        return SpecialTokens(
            bos_id=bos,
            eos_ids=ends,
            pad_id=self.special_id("padding"),
            unk_id=self.special_id("unknown"),
            prefix=(bos,) if bos is not None and self.flag("add_bos_token", default=adds_bos) else (),
            suffix=(eos,) if eos is not None and self.flag("add_eos_token", default=False) else (),
        )


def build_tokenizer(metadata: Mapping[str, Any], *, vocab_size: int | None = None) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Args:
        metadata: The file's key/value pairs, arrays as sequences.
        vocab_size: Number of ids of the model; by default the length of the token list.

    Raises:
        CheckpointError: The metadata is incomplete or contradicts itself.
        ModelError: The file names a kind of tokenizer, or a word split, that is not known.

    Cost: under two seconds for 262,144 tokens.
    """
    vocab = GgufVocab.read(metadata)
    build = _BUILDERS.get(vocab.model)
    if build is None:
        known = ", ".join(sorted(_BUILDERS))
        raise ModelError(f"unknown tokenizer.ggml.model '{vocab.model}' in the GGUF file; known are: {known}")
    return build(vocab, len(vocab.tokens) if vocab_size is None else vocab_size)


def _build_byte_level(vocab: GgufVocab, vocab_size: int) -> Tokenizer:
    from tokenizers import Regex, models, normalizers, pre_tokenizers  # noqa: PLC0415  (start-up time)

    split = _word_split(vocab)
    merges = [_parse_merge(merge) for merge in vocab.metadata.get("tokenizer.ggml.merges") or ()]
    if not merges:
        raise CheckpointError("the GGUF file's byte-level tokenizer has no merges (no tokenizer.ggml.merges)")
    ids = {text: id_ for id_, text in enumerate(vocab.tokens) if vocab.kinds[id_] != TokenKind.UNUSED}
    encoder = _make_encoder(models.BPE, vocab=ids, merges=merges, ignore_merges=split.takes_whole_words)
    if split.normal_form == "NFC":
        encoder.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    to_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_letters])
    _add_tokens(encoder, vocab)
    special = vocab.special_tokens(adds_bos=split.adds_bos)
    return Tokenizer(encoder, special, spelling=byte_level_bytes, added_spelling=plain_bytes, vocab_size=vocab_size)


def _build_sentencepiece(vocab: GgufVocab, vocab_size: int) -> Tokenizer:
    from tokenizers import models, normalizers  # noqa: PLC0415  (start-up time)

    scores = vocab.metadata.get("tokenizer.ggml.scores")
    if scores is None:
        raise CheckpointError("the GGUF file's SentencePiece tokenizer has no scores (no tokenizer.ggml.scores)")
    _check_length("scores", scores, len(vocab.tokens))
    ids = {text: id_ for id_, text in enumerate(vocab.tokens) if vocab.kinds[id_] != TokenKind.UNUSED}
    unk = vocab.special_id("unknown")
    encoder = _make_encoder(
        models.BPE,
        vocab=ids,
        merges=merges_from_scores(vocab, scores),
        byte_fallback=bool(vocab.ids_of(TokenKind.BYTE)),
        fuse_unk=True,
        unk_token=None if unk is None else vocab.tokens[unk],
    )
    adds_space = vocab.flag("add_space_prefix", default=True)
    # Behind every added token too, not only at the beginning: so do the published tokenizers of Llama 2 and Phi-3.
    to_metaspace = normalizers.Replace(" ", "\u2581")
    steps = [normalizers.Prepend("\u2581"), to_metaspace] if adds_space else [to_metaspace]
    encoder.normalizer = normalizers.Sequence(steps)
    _add_tokens(encoder, vocab, are_spaces_rewritten=not adds_space)
    return Tokenizer(
        encoder,
        vocab.special_tokens(adds_bos=True),
        spelling=metaspace_bytes,
        added_spelling=plain_bytes,
        drops_first_space=adds_space,
        vocab_size=vocab_size,
    )


def merges_from_scores(vocab: GgufVocab, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Write a SentencePiece vocabulary's scores as a list of merges, best first.

    Every way to cut a piece into two pieces is a merge of the piece's score; among equals the longer left part goes
    first. Only ordinary pieces merge: control, user-defined and byte tokens never come out of letters.

    Source: Kudo and Richardson 2018 (SentencePiece), BPE: the adjacent pair whose union has the best score merges.
    """
    pieces = {vocab.tokens[id_]: id_ for id_ in vocab.ids_of(TokenKind.NORMAL)}
    merges: list[tuple[float, int, int, int, str, str]] = []
    for piece, id_ in pieces.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                merges.append((-scores[id_], -cut, -len(right), id_, left, right))
    merges.sort()
    return [(left, right) for _, _, _, _, left, right in merges]


_BUILDERS = {"gpt2": _build_byte_level, "llama": _build_sentencepiece}


def _word_split(vocab: GgufVocab) -> WordSplit:
    name = str(vocab.metadata.get("tokenizer.ggml.pre", "default"))
    try:
        return WORD_SPLITS[name]
    except ConfigError as error:
        raise ModelError(f"{error}; use the model's own tokenizer with --tokenizer") from None


def _make_encoder(model: Any, **parts: Any) -> Any:
    from tokenizers import Tokenizer as Encoder  # noqa: PLC0415  (start-up time)

    try:
        return Encoder(model(**parts))
    except Exception as error:
        raise CheckpointError(f"the GGUF file's vocabulary contradicts itself: {error}") from error


def _add_tokens(encoder: Any, vocab: GgufVocab, *, are_spaces_rewritten: bool = False) -> None:
    """Make control and user-defined tokens stand whole in any text, the longest first.

    Args:
        encoder: Gets the tokens.
        vocab: Names them.
        are_spaces_rewritten: Spaces become U+2581 and nothing else happens to a text; then tokens with spaces are
            looked for afterwards, so that both ways of writing them count.
    """
    from tokenizers import AddedToken  # noqa: PLC0415  (start-up time)

    eats_space = vocab.metadata.get("general.architecture") == "phi3" and vocab.model == "llama"

    def added(*kinds: TokenKind, is_special: bool) -> list[Any]:
        texts = filter(None, (vocab.tokens[id_] for id_ in vocab.ids_of(*kinds)))
        return [
            AddedToken(
                text,
                special=is_special,
                normalized=are_spaces_rewritten and not is_special and " " in text,
                rstrip=eats_space and text not in _KEEP_SPACE,
            )
            for text in texts
        ]

    encoder.add_special_tokens(added(*_SPECIAL_KINDS, is_special=True))
    encoder.add_tokens(added(TokenKind.USER_DEFINED, is_special=False))


def _parse_merge(merge: str) -> tuple[str, str]:
    """Cut `left right` at its one space; a letter can't be a space, so position 0 is none."""
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise CheckpointError(f"the GGUF file's merge {merge!r} is not two tokens with a space between")
    return left, right


def _guess_kinds(metadata: Mapping[str, Any], num_tokens: int) -> list[int]:
    """Without kinds, only the ids that are named as special are control tokens."""
    kinds = [int(TokenKind.NORMAL)] * num_tokens
    for name in _ID_KEYS:
        id_ = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if id_ is not None and 0 <= int(id_) < num_tokens:
            kinds[int(id_)] = TokenKind.CONTROL
    return kinds


def _check_length(name: str, column: Sequence[Any], num_tokens: int) -> None:
    if len(column) != num_tokens:
        raise CheckpointError(
            f"the GGUF file's tokenizer.ggml.{name} has {len(column)} entries for {num_tokens} tokens"
        )
