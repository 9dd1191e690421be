"""Tokenizers from files: a directory in Hugging Face layout, a tokenizer.json, or GGUF metadata.

Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json and, for the number of ids,
config.json. Runs no code of the model's and needs no network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.base.errors import CheckpointError, ModelError
from trivium.base.ids import TokenId
from trivium.tokens.gguf_vocab import build_tokenizer
from trivium.tokens.pipeline_json import read_decoding, read_frame
from trivium.tokens.tokenizer import SpecialTokens, Tokenizer

if TYPE_CHECKING:
    import tokenizers


def load_tokenizer_from_gguf(metadata: Mapping[str, Any], *, vocab_size: int | None = None) -> Tokenizer:
    """Build the tokenizer that a GGUF file's metadata describes; see `gguf_vocab.build_tokenizer`."""
    return build_tokenizer(metadata, vocab_size=vocab_size)


def load_tokenizer(path: Path, *, vocab_size: int | None = None) -> Tokenizer:
    """Load the tokenizer of a model directory.

    Args:
        path: The directory, or a tokenizer.json; its neighbours are read too.
        vocab_size: Number of ids of the model; by default what config.json says, or else the tokenizer's own.

    Raises:
        ModelError: There is no tokenizer.json, or it is of a kind that is not known.
        CheckpointError: A file is malformed, or two contradict each other.
    """
    file = path if path.is_file() else path / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{path} has no tokenizer.json{_other_files(path)}; name one with --tokenizer")
    description = read_json(file)
    encoder = _parse_encoder(file)
    config = read_json(file.parent / "tokenizer_config.json")
    names = read_json(file.parent / "special_tokens_map.json") | config
    _add_missing_tokens(encoder, _listed_tokens(file.parent, config), _special_names(names))
    decoding = read_decoding(description)
    return Tokenizer(
        encoder,
        _special_tokens(encoder, names, read_frame(description)),
        spelling=decoding.spelling,
        added_spelling=decoding.added_spelling,
        drops_first_space=decoding.drops_first_space,
        vocab_size=vocab_size or _model_vocab_size(file.parent),
    )


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, empty when there is no such file.

    Raises:
        CheckpointError: The file is not JSON, or not an object.
    """
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} is not a JSON object")
    return content


def token_text(value: Any) -> str | None:
    """Return the text of a token that a configuration names, either plainly or as an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _parse_encoder(file: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Encoder  # noqa: PLC0415  (start-up time)

    try:
        encoder = Encoder.from_file(str(file))
    except Exception as error:
        raise CheckpointError(f"{file} is not a tokenizer.json that can be read: {error}") from error
    encoder.no_padding()
    encoder.no_truncation()
    return encoder


def _listed_tokens(directory: Path, config: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Collect the added tokens that the files beside tokenizer.json list, by id."""
    listed = {int(id_): {"content": text} for text, id_ in read_json(directory / "added_tokens.json").items()}
    for id_, token in (config.get("added_tokens_decoder") or {}).items():
        listed[int(id_)] = dict(token)
    return listed


def _special_names(names: Mapping[str, Any]) -> set[str]:
    single = (token_text(names.get(f"{name}_token")) for name in ("bos", "eos", "pad", "unk", "sep", "cls", "mask"))
    more = (token_text(value) for value in names.get("additional_special_tokens") or ())
    return {text for text in (*single, *more) if text}


def _add_missing_tokens(
    encoder: tokenizers.Tokenizer, listed: Mapping[int, Mapping[str, Any]], special_names: set[str]
) -> None:
    """Enter listed tokens that tokenizer.json lacks, or holds as mere vocabulary, in the order of their ids."""
    from tokenizers import AddedToken  # noqa: PLC0415  (start-up time)

    present = {token.content: token.special for token in encoder.get_added_tokens_decoder().values()}
    for id_, token in sorted(listed.items()):
        text = str(token["content"])
        is_special = bool(token.get("special", False)) or text in special_names
        if present.get(text) is is_special:
            continue
        flags = {name: bool(token[name]) for name in ("single_word", "lstrip", "rstrip", "normalized") if name in token}
        added = AddedToken(text, special=is_special, **({"normalized": False} | flags))
        (encoder.add_special_tokens if is_special else encoder.add_tokens)([added])
        if encoder.token_to_id(text) != id_:
            raise CheckpointError(
                f"added token {text!r} is listed with id {id_}, but tokenizer.json gives it {encoder.token_to_id(text)}"
            )


def _special_tokens(
    encoder: tokenizers.Tokenizer,
    names: Mapping[str, Any],
    frame: tuple[tuple[TokenId, ...], tuple[TokenId, ...]],
) -> SpecialTokens:
    """Name the special ids; explicit add_bos_token and add_eos_token outrank the post-processor."""

    def named(name: str) -> TokenId | None:
        text = token_text(names.get(f"{name}_token"))
        id_ = None if text is None else encoder.token_to_id(text)
        return None if id_ is None else TokenId(id_)

    bos, eos = named("bos"), named("eos")
    prefix, suffix = frame
    if isinstance(add_bos := names.get("add_bos_token"), bool):
        prefix = (bos,) if add_bos and bos is not None else ()
    if isinstance(add_eos := names.get("add_eos_token"), bool):
        suffix = (eos,) if add_eos and eos is not None else ()
    return SpecialTokens(
        bos_id=bos if bos is not None else next(iter(prefix), None),
        eos_ids=() if eos is None else (eos,),
        pad_id=named("pad"),
        unk_id=named("unk"),
        prefix=prefix,
        suffix=suffix,
    )


def _model_vocab_size(directory: Path) -> int | None:
    config = read_json(directory / "config.json")
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size if isinstance(size, int) else None


def _other_files(path: Path) -> str:
    found = [name for name in ("tokenizer.model", "vocab.json", "tekken.json") if (path / name).is_file()]
    return f" (but {', '.join(found)}, which must be converted first)" if found else ""
