"""Names for the contents of pages that mean the same in every process: chained hashes.

The key of a full page says which tokens lie in it, which tokens lead to it, and in what namespace::

    root key    = hash(namespace)
    key of page = hash(key of the page before, or root key | the page's tokens as little-endian int32)

Equal keys therefore mean equal KV (128 bits of BLAKE2b: no two pages of a lifetime collide). They are the same after a
restart and on another machine, so a file on disk and a router can use them.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Any

import numpy as np

from trivium.base.errors import InternalError

KEY_BYTES = 16

_SCALARS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"",
    bool: lambda value: b"1" if value else b"0",
    int: lambda value: str(value).encode(),
    float: lambda value: struct.pack("<d", value),
    str: lambda value: value.encode(),
    bytes: bytes,
}


def root_key(namespace: Hashable) -> bytes:
    """Return the key before the first page of a namespace.

    Raises:
        InternalError: The namespace has a part that is not text, bytes, a number, nothing, or a tuple of these.
    """
    return blake2b(_canonical(namespace), digest_size=KEY_BYTES, person=b"trivium root").digest()


def page_keys(before: bytes, tokens: bytes, page_len: int) -> list[bytes]:
    """Return the keys of consecutive full pages.

    Args:
        before: Key of the page before them, or the root key.
        tokens: Their tokens, int32 in the machine's byte order; those behind the last full page are not read.
        page_len: Tokens per page.

    Cost: about a microsecond per page.
    """
    if sys.byteorder == "big":
        tokens = np.frombuffer(tokens, np.int32).astype("<i4").tobytes()
    page_bytes = page_len * 4
    keys = []
    for at in range(0, len(tokens) // page_bytes * page_bytes, page_bytes):
        before = blake2b(before + tokens[at : at + page_bytes], digest_size=KEY_BYTES).digest()
        keys.append(before)
    return keys


def _canonical(value: Hashable) -> bytes:
    """Write a value with its kind and length, so that different values never read the same."""
    if isinstance(value, tuple):
        body = b"".join(map(_canonical, value))
        return b"tuple %d:%b" % (len(body), body)
    write = _SCALARS.get(type(value))
    if write is None:
        raise InternalError(f"a cache namespace has a part of type {type(value).__name__}, which has no stable form")
    body = write(value)
    return b"%b %d:%b" % (type(value).__name__.encode(), len(body), body)
