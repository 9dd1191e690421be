"""The file format of the disk tier: segments, to which pages are appended and which are removed as a whole.

::

    segment   "TRIVKV01" | length of facts u32 | digest of facts [16] | facts, JSON | record | record | …

    record    [0, 4)      "PAGE"
              [4, 8)      KV group                    numbers are little-endian
              [8, 12)     position in pages
              [12, 16)    number of tokens, n
              [16, 24)    bytes of content, c
              [24, 40)    key                         digests are blake2b, 16 bytes
              [40, 56)    key of the page before
              [56, 72)    digest of tokens and content
              [72, 88)    digest of [0, 72)
              [88, + 4n)  tokens, int32
              …           content

Nothing is ever overwritten. Whatever a crash cuts off is the end of the last record, which a reader recognizes by the
file's length; whatever a disk changes, it recognizes by a digest.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from trivium.tiers.page import KEY_BYTES, PageFacts, PageRef

if TYPE_CHECKING:
    from pathlib import Path

    from trivium.tiers.page import StoredPage

    Part = bytes | memoryview

MAGIC = b"TRIVKV01"
_MARK = b"PAGE"
_DIGEST_BYTES = 16
_HEAD = struct.Struct(f"<{len(MAGIC)}sI{_DIGEST_BYTES}s")
_RECORD = struct.Struct(f"<4sIIIQ{KEY_BYTES}s{KEY_BYTES}s{_DIGEST_BYTES}s")
RECORD_BYTES = _RECORD.size + _DIGEST_BYTES
_MOST_FACTS_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies in its segment."""

    offset: int
    num_tokens: int
    content_bytes: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole record."""
        return RECORD_BYTES + 4 * self.num_tokens + self.content_bytes

    def moved_to(self, offset: int) -> Place:
        """Return the place of the same record elsewhere."""
        return Place(offset, self.num_tokens, self.content_bytes)

    @property
    def end(self) -> int:
        """Offset behind the record."""
        return self.offset + self.num_bytes


def make_head(facts: Mapping[str, object]) -> bytes:
    """Write the beginning of a segment, which says whose pages it holds."""
    text = msgspec.json.encode(facts, order="sorted")
    return _HEAD.pack(MAGIC, len(text), _digest(text)) + text


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a segment to read it.

    Raises:
        OSError: It is gone, a link, or not ours to read.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def begin(path: Path, head: bytes) -> None:
    """Make a segment that nobody else can read.

    Raises:
        OSError: It is there already, or the disk is full or broken.
    """
    _write(path, os.O_CREAT | os.O_EXCL, [head])


def append(path: Path, size: int, *parts: Part) -> None:
    """Append bytes to a segment of `size` bytes.

    Raises:
        OSError: The disk is full or broken; the segment may hold some of the bytes.
    """
    _write(path, 0, list(parts), size)


def read_head(file: int) -> tuple[dict[str, object], int] | None:
    """Return the facts of a segment and where its records begin, or `None` when it is no segment of ours.

    Raises:
        OSError: The disk is broken.
    """
    head = os.pread(file, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        return None
    magic, length, digest = _HEAD.unpack(head)
    if magic != MAGIC or length > _MOST_FACTS_BYTES:
        return None
    text = os.pread(file, length, _HEAD.size)
    if len(text) < length or _digest(text) != digest:
        return None
    facts: dict[str, object] = msgspec.json.decode(text, type=dict[str, object])
    return facts, _HEAD.size + length


def append_page(path: Path, size: int, page: StoredPage) -> Place:
    """Append a page to a segment of `size` bytes.

    Raises:
        OSError: The disk is full or broken; the segment may end with part of the record.
    """
    facts, content = page.facts, memoryview(page.content).cast("B")
    place = Place(size, len(facts.tokens) // 4, len(content))
    head = _RECORD.pack(
        _MARK,
        facts.ref.group,
        facts.index,
        place.num_tokens,
        len(content),
        facts.ref.key,
        facts.parent,
        _digest(facts.tokens, content),
    )
    append(path, size, head, _digest(head), facts.tokens, content)
    return place


def scan(file: int, start: int, size: int) -> Iterator[tuple[PageRef, Place]]:
    """Yield the records between `start` and `size`, until one is not whole; contents are not read.

    Raises:
        OSError: The disk is broken.
    """
    offset = start
    while offset + RECORD_BYTES <= size:
        found = _read_record_head(os.pread(file, RECORD_BYTES, offset))
        if found is None:
            return
        group, _, num_tokens, content_bytes, key, _, _ = found
        place = Place(offset, num_tokens, content_bytes)
        if place.end > size:
            return
        yield PageRef(group, key), place
        offset = place.end


def read_page(file: int, place: Place, facts: PageFacts) -> bytes | None:
    """Return the content of a record, or `None` unless every byte of it is what was written for `facts`.

    Raises:
        OSError: The disk is broken.
    """
    raw = read_record(file, place)
    found = _read_record_head(raw[:RECORD_BYTES])
    if found is None or len(raw) != place.num_bytes:
        return None
    group, index, num_tokens, content_bytes, key, parent, body = found
    content_at = RECORD_BYTES + 4 * num_tokens
    tokens, content = raw[RECORD_BYTES:content_at], memoryview(raw)[content_at:]
    is_asked = (group, key) == facts.ref and (index, parent, tokens) == (facts.index, facts.parent, facts.tokens)
    if not is_asked or len(content) != content_bytes or _digest(tokens, content) != body:
        return None
    return bytes(content)


def read_record(file: int, place: Place) -> bytes:
    """Return a record as it lies on the disk, unverified.

    Raises:
        OSError: The disk is broken.
    """
    parts, offset = [], place.offset
    while offset < place.end:
        part = os.pread(file, place.end - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_record_head(head: bytes) -> tuple[int, int, int, int, bytes, bytes, bytes] | None:
    """Unpack (group, index, tokens, content bytes, key, parent, body digest); `None` when it is damaged."""
    if len(head) != RECORD_BYTES or _digest(head[: _RECORD.size]) != head[_RECORD.size :]:
        return None
    mark, *numbers = _RECORD.unpack(head[: _RECORD.size])
    return tuple(numbers) if mark == _MARK else None


def _digest(*parts: Part) -> bytes:
    hasher = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def _write(path: Path, flags: int, parts: list[Part], offset: int = 0) -> None:
    """Write all parts from `offset` on, however little a call takes."""
    file = os.open(path, flags | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        left = [memoryview(part).cast("B") for part in parts]
        while left:
            count = os.pwritev(file, left, offset)
            offset += count
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if left and count:
                left[0] = left[0][count:]
    finally:
        os.close(file)
