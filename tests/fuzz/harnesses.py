"""What is fuzzed: functions of arbitrary bytes, which raise where a law does not hold.

`python tests/fuzz/run.py NAME` drives one by coverage (atheris); `test_harnesses.py` drives all by hypothesis.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from support import tiny_tokenizers
from support.fake_engine import EOS_ID, FakeEngine
from support.grammars import grammar, walk
from support.server_site import open_site
from support.sse import chunks, texts_by_index
from trivium.base.errors import InternalError, InvalidParameterError
from trivium.base.ids import FinishReason
from trivium.config.chat_output import ChatOutput, Tool
from trivium.config.sampling import SamplingParams
from trivium.grammar.automaton import OutputAutomaton
from trivium.grammar.deep_stack import deep_pool
from trivium.grammar.dialects import DIALECTS
from trivium.grammar.part_reader import PartReader
from trivium.grammar.parts import OutputPart, join_parts
from trivium.tokens.detokenizer import Detokenizer
from trivium.tokens.tokenizer import Tokenizer

MOST_TOKENS = 64


@cache
def tokenizers() -> tuple[Tokenizer, ...]:
    """Of both kinds."""
    return (
        tiny_tokenizers.byte_level(),
        tiny_tokenizers.metaspace(),
        tiny_tokenizers.metaspace(add_space_prefix=False),
    )


def ids_of(data: bytes) -> list[int]:
    """Read bytes as ids, two each, some of them of no token."""
    pairs = zip(data[0 : 2 * MOST_TOKENS : 2], data[1 : 2 * MOST_TOKENS : 2], strict=False)
    return [low + 256 * (high & 1) - (high == 255) for low, high in pairs]


def detokenize(data: bytes) -> None:
    """Pieces joined are the whole text, and none ends inside a character, wherever the reader was taken back to."""
    if not data:
        return
    tokenizer, skips = tokenizers()[data[0] % 3], bool(data[0] & 4)
    ids = ids_of(data[1:])
    reader = Detokenizer(tokenizer, skip_special_tokens=skips)
    pieces = []
    for place, token_id in enumerate(ids):
        state = reader.state
        if place == data[0] >> 3:
            reader.push(data[-1])
            reader.restore(state)
        pieces.append(reader.push(token_id))
    pieces.append(reader.finish())
    whole = tokenizer.decode(ids, skip_special_tokens=skips)
    ensure("".join(pieces) == whole, f"{pieces} is not {whole!r}")


def read_answer(data: bytes) -> None:
    """An answer ends at the first letter at which a stop text is whole, and what was given out is never taken back."""
    cut = data.find(0)
    if cut < 1:
        return
    stops = tuple(each for each in data[:cut].decode("utf-8", "ignore").split("|") if each)[:4]
    tokenizer = tokenizers()[0]
    ids = [each for each in ids_of(data[cut + 1 :]) if 0 <= each < tiny_tokenizers.BYTE_THINK]
    automaton = OutputAutomaton(tokenizer, SamplingParams(stop=stops), ())
    text, ended = "", False
    for token_id in ids:
        progress = automaton.advance(token_id)
        text += progress.text
        if progress.finish is not None:
            ended = True
            break
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    places = [whole.find(stop) for stop in stops if stop in whole]
    if ended:
        ensure(whole.startswith(text) and not any(stop in text for stop in stops), f"{text!r} of {whole!r}, {stops}")
        ensure(bool(places) or "\ufffd" in whole, f"{text!r} ended for none of {stops}")
    else:
        text += automaton.finish(FinishReason.LENGTH).text
        ensure(text == whole, f"{text!r} is not {whole!r}, {stops}")


def read_parts(data: bytes) -> None:
    """Reasoning, content and calls are the same however the text of an answer is cut, and the reader never raises."""
    if len(data) < 3:
        return
    reader, marks = part_readers()[data[0] % len(part_readers())]
    text = "".join(_spelled(each, marks) for each in data[2:])
    cut = data[1] % (len(text) + 1)
    whole = _parts_of(reader, [text])
    for pieces in (list(text), [text[:cut], text[cut:]]):
        ensure(_parts_of(reader, pieces) == whole, f"{text!r} depends on its cuts")


def _spelled(byte: int, marks: Sequence[str]) -> str:
    if byte < 0x80:
        return chr(byte)
    return "é😀"[byte & 1] if byte < 0xC0 else marks[byte % len(marks)]


def _parts_of(reader: PartReader, pieces: Sequence[str]) -> list[OutputPart]:
    state, parts = reader.start, []
    for piece in pieces:
        state, more = reader.read(state, piece)
        parts += more
    return join_parts([*parts, *reader.finish(state)])


@cache
def part_readers() -> tuple[tuple[PartReader, tuple[str, ...]], ...]:
    """A reader for every dialect, whether or not the prompt has opened its reasoning, with texts that it may meet."""
    found = []
    for name, dialect in DIALECTS.items():
        for starts in {False, dialect.reads_reasoning}:
            wanted = ChatOutput(
                reasoning_dialect=name if dialect.reads_reasoning else None,
                starts_in_reasoning=starts,
                tool_dialect=name if dialect.reads_calls else None,
                tools=(Tool(name="f", parameters=_PARAMETERS), Tool(name="g.h-1")),
            )
            marks = dict.fromkeys(re.findall(r"='((?:[^'\\]|\\.)+)'", repr(dialect)))
            found.append((PartReader(wanted), (*(each.replace("\\n", "\n") for each in marks), *_CALL_TEXTS)))
    return tuple(found)


_PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "array"}},
}
_CALL_TEXTS = ('{"name": "f", "arguments": {"a": "', '"}}', "f", "g.h-1", '{"a": 1}', "f(a='x')", "[", "]", "<", '"')


def write_events(data: bytes) -> None:
    """A stream is whole events of strict JSON in UTF-8, whose texts joined are the answer that is not streamed."""
    if len(data) < 2:
        return
    ids = [each % 256 for each in ids_of(data[2:])][:24]
    fields: dict[str, Any] = {"max_tokens": 24, "n": 1 + data[0] % 2, "ignore_eos": True}
    if data[0] & 4:
        fields |= {"logprobs": True, "top_logprobs": 2} if data[0] & 2 else {"logprobs": 2}
    if data[0] & 8:
        fields["return_token_ids"] = True
    if data[0] & 16 and not data[0] & 2:
        fields["echo"] = True

    def script(prompt_ids: Sequence[int], choice: int, params: SamplingParams) -> list[int]:
        return [*ids[choice:], EOS_ID]

    async def ask() -> None:
        site = open_site(FakeEngine(script))
        post = site.chat if data[0] & 2 else site.complete
        whole = await post(**fields)
        streamed = await post(**fields, stream=True)
        await site.client.aclose()
        ensure(streamed.content.decode("utf-8", "strict").endswith("data: [DONE]\n\n"), "the stream has no end")
        texts = texts_by_index(chunks(streamed.text))
        for choice in whole.json()["choices"]:
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            ensure(texts.get(choice["index"], "") == text, f"{texts} is not {text!r}")

    asyncio.run(ask())


def compile_schema(data: bytes) -> None:
    """Bytes that are JSON are refused as a schema, or give answers that are JSON."""
    _compile("json", data, json.loads)


def compile_grammar(data: bytes) -> None:
    """Any text is refused as a grammar, or gives masks."""
    _compile("grammar", data, lambda text: text)


def compile_regex(data: bytes) -> None:
    """Any text is refused as a regular expression, or gives masks."""
    _compile("regex", data, lambda text: text)


def compile_tag(data: bytes) -> None:
    """Bytes that are JSON are refused as a structural tag, or give masks."""
    _compile("structural_tag", data, json.loads)


def _compile(kind: str, data: bytes, read: Callable[[str], Any]) -> None:
    text = data.decode("utf-8", "ignore")
    try:
        value = read(text)
    except (ValueError, RecursionError):
        return
    with contextlib.suppress(InvalidParameterError):
        matcher = _pool().submit(grammar, **{kind: value}).result().start()
        with contextlib.suppress(InternalError):  # beyond the limits, or at a dead end
            walk(matcher, seed=len(data), most=20)


@cache
def _pool() -> Any:
    return deep_pool("fuzz-grammar")


def ensure(condition: bool, message: str) -> None:
    """Raise where a law does not hold."""
    if not condition:
        raise AssertionError(message)


HARNESSES: Mapping[str, Callable[[bytes], None]] = {
    "detokenize": detokenize,
    "read_answer": read_answer,
    "read_parts": read_parts,
    "write_events": write_events,
    "compile_schema": compile_schema,
    "compile_grammar": compile_grammar,
    "compile_regex": compile_regex,
    "compile_tag": compile_tag,
}
SEEDS: Mapping[str, Sequence[bytes]] = {
    "detokenize": (b"\x00h\x00\xc3\x00\xa9\x00", b"\x01\x03\x01"),
    "read_answer": (b"ab|b\x00x\x00a\x00b\x00", b"\xc3\xa9\x00\xc3\x00\xa9\x00"),
    "read_parts": tuple(bytes([place, 3, *range(0xC0, 0xD6), 65, *range(0xD6, 0xF0)]) for place in range(64)),
    "write_events": (b"\x06\x00h\x00\xf0\x00\x9f\x00\x90\x00", b"\x1c\x00a\x00"),
    "compile_schema": (
        b'{"type":"object","properties":{"a":{"type":"integer","minimum":3}},"required":["a"]}',
        b'{"$defs":{"d":{"items":{"$ref":"#/$defs/d"}}},"anyOf":[{"$ref":"#/$defs/d"},{"format":"date"}]}',
    ),
    "compile_grammar": (b'start: "a" b*\nb: /[0-9]/ | "(" b ")"', b'root ::= "a" x+\nx ::= [0-9] | "(" x ")"'),
    "compile_regex": (b"(a|b)*[0-9]{2,3}", b"\\w+@\\d"),
    "compile_tag": (
        b'{"structures":[{"begin":"<f>","schema":{"type":"integer"},"end":"</f>"}],"triggers":["<f"]}',
        b'{"format":{"type":"tag","begin":"<","content":{"type":"regex","pattern":"[a-z]+"},"end":">"}}',
        b'{"format":{"type":"sequence","elements":[{"type":"any_text"},{"type":"const_string","value":"!"}]}}',
    ),
}
