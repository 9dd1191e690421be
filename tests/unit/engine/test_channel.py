"""Messages cross a channel whole and in order, whatever their size and however they are cut on the way."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.engine.channel import Frames, Inlet, Outlet, Reader, Writer, frame

LARGE = bytes(range(256)) * (1 << 14)
"""Four megabytes: many times what a socket holds."""


@given(payloads=st.lists(st.binary(max_size=50), max_size=8), cuts=st.lists(st.integers(1, 20), min_size=1))
def test_messages_are_whole_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream, frames, found = b"".join(map(frame, payloads)), Frames(), []
    while stream:
        size = cuts[len(found) % len(cuts)]
        found += frames.feed(stream[:size])
        stream = stream[size:]
    assert found == payloads


async def test_what_the_client_sends_before_anybody_listens_arrives_once_in_order(tmp_path: Path) -> None:
    outlet = Outlet(tmp_path / "in")
    sent = [b"first", LARGE, b"", b"last"]
    for payload in sent:
        outlet.send(payload)
    reader = Reader(tmp_path / "in")
    read: list[bytes] = []
    async with asyncio.timeout(10):
        while len(read) < len(sent):
            read += reader.take(0)
            await asyncio.sleep(0)
    assert read == sent
    outlet.close()
    assert reader.take(1000) == []
    assert reader.is_closed
    reader.close()


async def test_the_client_hears_all_that_connect(tmp_path: Path) -> None:
    inlet = Inlet(tmp_path / "out")
    said = {number: [bytes([number]) * length for length in (1, 70_000, 3)] for number in range(3)}

    def speak(number: int) -> None:
        writer = Writer(tmp_path / "out")
        for payload in said[number]:
            writer.send(payload)
        writer.close()

    threads = [threading.Thread(target=speak, args=(number,)) for number in said]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(10):
        heard = [await inlet.receive() for _ in range(9)]
    for number, payloads in said.items():
        assert [payload for payload in heard if payload[0] == number] == payloads
    for thread in threads:
        thread.join()
    inlet.close()


async def test_a_large_message_waits_for_the_client_and_arrives(tmp_path: Path) -> None:
    inlet = Inlet(tmp_path / "out")
    writer = Writer(tmp_path / "out")
    sending = threading.Thread(target=writer.send, args=(LARGE,))
    sending.start()
    time.sleep(0.05)
    assert sending.is_alive(), "nobody has read it"
    async with asyncio.timeout(10):
        assert await inlet.receive() == LARGE
    sending.join()
    writer.close()
    inlet.close()


async def test_ends_notice_that_the_other_is_gone(tmp_path: Path) -> None:
    inlet, outlet = Inlet(tmp_path / "out"), Outlet(tmp_path / "in")
    writer, reader = Writer(tmp_path / "out"), Reader(tmp_path / "in")
    await asyncio.sleep(0.01)
    reader.close()
    for _ in range(3):
        outlet.send(LARGE)  # does not raise: that an engine is gone is noticed by its exit code
    inlet.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        writer.send(LARGE)
    outlet.close()
    writer.close()


def test_nobody_to_connect_to_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Reader(tmp_path / "in")
