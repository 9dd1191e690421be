"""How messages travel between client and engine: msgpack over two Unix sockets in a private folder.

::

    client                                   engine process
    Outlet inbox.sock   ── ToEngine ──►      Reader  (loop thread)
    Inlet  outbox.sock  ◄── FromEngine ──    Writer  (loop thread: deltas)   Writer (pulse thread: heartbeats)

The folder has mode 0700, so only the same user can speak to the engine. Nothing is ever unpickled.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from trivium.engine.messages import FromEngine, ToEngine

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    """Pack a message."""
    return _encoder.encode(message)


def decode_to_engine(payload: bytes) -> ToEngine:
    """Unpack what a client sent; raises `msgspec.DecodeError` on anything else."""
    return _to_engine.decode(payload)


def decode_from_engine(payload: bytes) -> FromEngine:
    """Unpack what an engine sent; raises `msgspec.DecodeError` on anything else."""
    return _from_engine.decode(payload)


class Sockets:
    """A private folder with the addresses of one client and its engine."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trivium-")

    @property
    def inbox(self) -> Path:
        """Address on which the engine listens."""
        return address(Path(self._folder.name), "inbox")

    @property
    def outbox(self) -> Path:
        """Address on which the client listens."""
        return address(Path(self._folder.name), "outbox")

    @property
    def folder(self) -> Path:
        """The folder that holds both."""
        return Path(self._folder.name)

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()


def address(folder: Path, name: str) -> Path:
    """Address of one of the sockets in `folder`."""
    return folder / f"{name}.sock"
