"""What a tokenizer.json says about bytes and frames, read from the file's own description.

The `tokenizers` library runs normalizer, word split and model; post-processor and decoder are read here and done by
`Tokenizer`, which must be exact to the byte and must never double a begin token. A stage we can't do that for is an
error with its name, not a guess.
Source: the tokenizer.json format of the `tokenizers` library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trivium.base.errors import ModelError
from trivium.base.ids import TokenId
from trivium.tokens.vocab import (
    METASPACE,
    TokenSpelling,
    byte_level_bytes,
    metaspace_bytes,
    metaspace_text_bytes,
    plain_bytes,
)

Stage = Mapping[str, Any]
_HARMLESS = ("Fuse", "Sequence", "Strip")


@dataclass(frozen=True, slots=True)
class Decoding:
    """How ids become bytes."""

    spelling: TokenSpelling
    added_spelling: TokenSpelling
    drops_first_space: bool


def read_decoding(description: Stage) -> Decoding:
    """Derive from the decoder (or else the word split) how the vocabulary writes bytes.

    Raises:
        ModelError: There is a decoder stage whose meaning in bytes is not known here.
    """
    decoder = description.get("decoder") or _byte_level_stage(description.get("pre_tokenizer"))
    if not decoder:
        raise ModelError("the tokenizer.json has no decoder, so its tokens have no certain bytes")
    stages = {str(stage.get("type")): stage for stage in _walk(decoder, "decoders")}
    if "ByteLevel" in stages:
        _refuse_others(stages, "ByteLevel", *_HARMLESS)
        return Decoding(byte_level_bytes, plain_bytes, drops_first_space=False)
    if "Replace" in stages or "Metaspace" in stages:
        _refuse_others(stages, "Replace", "Metaspace", "ByteFallback", *_HARMLESS)
        _check_replaces_metaspace(stages.get("Replace") or stages["Metaspace"])
        spelling = metaspace_bytes if "ByteFallback" in stages else metaspace_text_bytes
        return Decoding(spelling, metaspace_text_bytes, drops_first_space=_drops_first_space(stages))
    raise ModelError(f"the tokenizer.json decodes with {_names(stages)}; known are ByteLevel, Metaspace and Replace")


def read_frame(description: Stage) -> tuple[tuple[TokenId, ...], tuple[TokenId, ...]]:
    """Return the ids that the post-processor puts before and after a single text."""
    prefix: list[TokenId] = []
    suffix: list[TokenId] = []
    for stage in _walk(description.get("post_processor"), "processors"):
        if stage.get("type") == "TemplateProcessing":
            before, after = _read_template(stage)
        elif stage.get("type") in {"RobertaProcessing", "BertProcessing"}:
            before, after = [TokenId(stage["cls"][1])], [TokenId(stage["sep"][1])]
        else:
            continue
        prefix = [*before, *prefix]
        suffix = [*suffix, *after]
    return tuple(prefix), tuple(suffix)


def _read_template(stage: Stage) -> tuple[list[TokenId], list[TokenId]]:
    known = stage.get("special_tokens", {})
    sides: tuple[list[TokenId], list[TokenId]] = ([], [])
    side = 0
    for piece in stage.get("single", ()):
        if "Sequence" in piece:
            side = 1
        elif "SpecialToken" in piece:
            sides[side].extend(TokenId(id_) for id_ in known[piece["SpecialToken"]["id"]]["ids"])
    return sides


def _walk(stage: Stage | None, key: str) -> Iterator[Stage]:
    """Yield a stage, or the stages of a sequence, in order."""
    if not stage:
        return
    if stage.get("type") == "Sequence":
        for inner in stage.get(key, ()):
            yield from _walk(inner, key)
    else:
        yield stage


def _byte_level_stage(pre_tokenizer: Stage | None) -> Stage | None:
    return next((s for s in _walk(pre_tokenizer, "pretokenizers") if s.get("type") == "ByteLevel"), None)


def _drops_first_space(stages: Mapping[str, Stage]) -> bool:
    strip, metaspace = stages.get("Strip"), stages.get("Metaspace")
    if strip is not None and strip.get("content") == " " and int(strip.get("start", 0)) > 0:
        return True
    return metaspace is not None and metaspace.get("prepend_scheme", "always") != "never"


def _check_replaces_metaspace(stage: Stage) -> None:
    pattern = stage.get("pattern", {}).get("String") if stage.get("type") == "Replace" else stage.get("replacement")
    replaced_by = stage.get("content", " ")
    if (pattern, replaced_by) != (METASPACE, " "):
        raise ModelError(f"the tokenizer.json decodes {pattern!r} to {replaced_by!r}; known is U+2581 to a space")


def _refuse_others(stages: Mapping[str, Stage], *known: str) -> None:
    if others := [name for name in stages if name not in known]:
        raise ModelError(f"the tokenizer.json decodes with {', '.join(others)}, whose bytes are not known here")


def _names(stages: Mapping[str, Stage]) -> str:
    return ", ".join(sorted(stages)) or "nothing"
