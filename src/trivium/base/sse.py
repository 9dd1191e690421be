"""Reading server-sent events: from bytes as they come to what their `data:` lines carry.

Lines end at line feeds only. A library that also splits at U+2028, U+0085 and their like, which JSON may hold as they
are, cuts an event in two.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator

_FIELD = b"data:"


def event_data(pieces: Iterable[bytes]) -> Iterator[bytes]:
    r"""Yield what the events of a stream carry.

    >>> list(event_data([b'data: {"a"', b': 1}\n\n: comment\n\n', b"data: [DONE]"]))
    [b'{"a": 1}', b'[DONE]']
    """
    lines = _Lines()
    for piece in pieces:
        yield from lines.feed(piece)
    yield from lines.feed(b"\n")


async def event_data_async(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """`event_data` for what comes in an event loop."""
    lines = _Lines()
    async for piece in pieces:
        for payload in lines.feed(piece):
            yield payload
    for payload in lines.feed(b"\n"):
        yield payload


class _Lines:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(_FIELD):
                yield line.removeprefix(_FIELD).strip()
