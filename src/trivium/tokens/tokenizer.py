"""`Tokenizer`: text to ids and back, whatever file it was built from.

Cutting text into tokens is the `tokenizers` library's; everything else is decided here: which tokens stand around a
prompt, what bytes each id stands for, which ids are special. Decoding is ours and exact to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trivium.base.ids import TokenId
from trivium.tokens.vocab import TokenSpelling, plain_bytes

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The tokens that frame a text, and those that end an answer."""

    bos_id: TokenId | None = None
    eos_ids: tuple[TokenId, ...] = ()
    """End tokens that the tokenizer knows of; a generation config may know more."""
    pad_id: TokenId | None = None
    unk_id: TokenId | None = None
    prefix: tuple[TokenId, ...] = ()
    """Put before a text when special tokens are asked for; usually the begin token, or nothing."""
    suffix: tuple[TokenId, ...] = ()
    """Put after a text when special tokens are asked for; usually nothing."""


class Tokenizer:
    """Cuts text into token ids and joins ids to text.

    Invariants:
        `decode(ids)` is the UTF-8 reading of the concatenated `token_bytes`, with U+FFFD for what is not UTF-8.
        `encode` never puts a second prefix before a text that begins with it.
    """

    def __init__(
        self,
        encoder: tokenizers.Tokenizer,
        special: SpecialTokens,
        *,
        spelling: TokenSpelling,
        added_spelling: TokenSpelling = plain_bytes,
        drops_first_space: bool = False,
        vocab_size: int | None = None,
    ) -> None:
        """Take over an encoder of the `tokenizers` library.

        Args:
            encoder: Cuts text; its post-processor and decoder are not used.
            special: Tokens around a text.
            spelling: How the vocabulary's own tokens write bytes.
            added_spelling: How added tokens do.
            drops_first_space: Whether a text loses one leading space when decoded, because encoding put it there.
            vocab_size: Number of ids of the model; by default that of the encoder.
        """
        self._encoder = encoder
        self._special = special
        self._spelling = spelling
        self._added_spelling = added_spelling
        self._added = {
            id_: (token.content, added_spelling(token.content), token.special)
            for id_, token in encoder.get_added_tokens_decoder().items()
        }
        counted = max(encoder.get_vocab_size(with_added_tokens=True), max(self._added, default=-1) + 1)
        self._num_known = max(counted, vocab_size or 0)
        self._special_ids = frozenset(id_ for id_, (_, _, is_special) in self._added.items() if is_special)
        self._bytes: list[bytes | None] = [None] * self._num_known
        self._known_texts: tuple[dict[int, str], dict[int, str]] = ({}, {})
        self.drops_first_space = drops_first_space
        self.vocab_size = counted if vocab_size is None else vocab_size

    @property
    def special(self) -> SpecialTokens:
        """The tokens around a text."""
        return self._special

    @property
    def bos_id(self) -> TokenId | None:
        """The token that begins a text, or `None`."""
        return self._special.bos_id

    @property
    def eos_ids(self) -> tuple[TokenId, ...]:
        """The tokens that end an answer, as far as the tokenizer's own files say."""
        return self._special.eos_ids

    @property
    def special_ids(self) -> tuple[TokenId, ...]:
        """Every id that `skip_special_tokens` leaves out, ascending."""
        return tuple(map(TokenId, sorted(self._special_ids)))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Cut `text` into ids; special tokens written out in it are recognised.

        Args:
            text: Any text; lone surrogates count as U+FFFD.
            add_special_tokens: Put the model's prefix and suffix around the text, unless they are there already.
        """
        ids: list[int] = self._encoder.encode(_without_surrogates(text), add_special_tokens=False).ids
        return self._frame(ids) if add_special_tokens else ids

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Cut many texts at once, in parallel; equal to `encode` of each."""
        cleaned = [_without_surrogates(text) for text in texts]
        encodings = self._encoder.encode_batch(cleaned, add_special_tokens=False)
        return [self._frame(e.ids) if add_special_tokens else e.ids for e in encodings]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Join ids to text; bytes that are not UTF-8 become U+FFFD, as with `errors="replace"`."""
        shown = (id_ for id_ in ids if not (skip_special_tokens and self.is_special(id_)))
        joined = b"".join(map(self.token_bytes, shown))
        if self.drops_first_space:
            joined = joined.removeprefix(b" ")
        return joined.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return exactly the bytes that the id adds to a text; none for ids that the tokenizer does not know."""
        if not 0 <= token_id < self._num_known:
            return b""
        known = self._bytes[token_id]
        if known is None:
            known = self._bytes[token_id] = self._read_bytes(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """Return the id's bytes as text of its own, U+FFFD where they are not UTF-8."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def known_texts(self, *, skip_special_tokens: bool) -> dict[int, str]:
        """Return what detokenizers have learnt: the texts of ids that stand for whole characters.

        Effects:
            Whoever comes upon another such id enters it, for all.
        """
        return self._known_texts[skip_special_tokens]

    def token_id(self, text: str) -> TokenId | None:
        """Return the id of the token that is stored as `text`, or `None`."""
        id_ = self._encoder.token_to_id(text)
        return None if id_ is None else TokenId(id_)

    def is_special(self, token_id: int) -> bool:
        """Say whether the id is a control token rather than text."""
        return token_id in self._special_ids

    def describe(self) -> dict[str, Any]:
        """Return what `portable.read_tokenizer` makes an equal tokenizer of, as JSON-like values."""
        return {
            "encoder": self._encoder.to_str(),
            "special": asdict(self._special),
            "spelling": self._spelling.__name__,
            "added_spelling": self._added_spelling.__name__,
            "drops_first_space": self.drops_first_space,
            "vocab_size": self.vocab_size,
        }

    def special_text(self, token_id: int | None) -> str:
        """Return the stored text of a special token, or the empty text for `None`; what templates write."""
        if token_id is None:
            return ""
        return self._added[token_id][0] if token_id in self._added else self.token_text(token_id)

    def _read_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id][1]
        text = self._encoder.id_to_token(token_id)
        return b"" if text is None else self._spelling(text)

    def _frame(self, ids: list[int]) -> list[int]:
        prefix, suffix = self._special.prefix, self._special.suffix
        before = () if tuple(ids[: len(prefix)]) == prefix else prefix
        after = () if suffix and tuple(ids[-len(suffix) :]) == suffix else suffix
        return [*before, *ids, *after]


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which are no characters and can't be encoded."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
