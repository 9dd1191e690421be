"""Events are cut at line feeds, however their bytes arrive, and at nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trivium.base.sse import event_data, event_data_async

TEXTS = st.lists(st.text(alphabet=st.sampled_from("ab\u2028\u2029\x85\x0b\x0c\x1c\u00e9\U0001f600 \n")), max_size=4)


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(ends)]


async def gathered(pieces: Sequence[bytes]) -> list[bytes]:
    async def come() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return [payload async for payload in event_data_async(come())]


@given(TEXTS, st.lists(st.integers(0, 200), max_size=6), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_every_event_is_read_whole(texts: list[str], places: list[int], end: bytes, is_ended: bool) -> None:
    payloads = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
    stream = b": comment" + end + end + (end + end).join(b"data: " + payload for payload in payloads)
    pieces = cut(stream + (end + end if is_ended else b""), places)
    assert list(event_data(pieces)) == payloads
    assert asyncio.run(gathered(pieces)) == payloads


def test_other_fields_are_passed_over() -> None:
    assert list(event_data([b"event: x\nid: 5\ndata:1\n\nretry: 3\n"])) == [b"1"]
