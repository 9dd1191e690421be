"""The disk tier: pages in segment files, which outlive the process.

Pages are appended to the newest segment. When the bound is reached, the oldest segment goes as a whole, and what was
read from it meanwhile is appended again (second chance: close to least recently used, without a write per read)::

    oldest                                          newest
    [ a b* c d ] [ e f g h ] [ i j* k l ] [ m n … ]
      └ evicted: a c d go, b* is appended behind n         * read since it was written

Segments of other models, precisions or processors are never read; they go first. An error of the disk ends the tier's
use with one log line: nothing here ever fails a request.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trivium.base.errors import ConfigError
from trivium.config.sizes import format_bytes
from trivium.tiers.folder import open_folder, remove, segment_path, segment_paths
from trivium.tiers.segment import (
    RECORD_BYTES,
    Place,
    append,
    append_page,
    begin,
    make_head,
    opened,
    read_head,
    read_page,
    read_record,
    scan,
)
from trivium.tiers.tier import NobodyListens, TierStats

if TYPE_CHECKING:
    from trivium.tiers.page import PageFacts, PageRef, StoredPage
    from trivium.tiers.tier import TierListener

logger = logging.getLogger(__name__)

_SEGMENT_BYTES = 64 << 20
_FEWEST_SEGMENTS = 8
_FEWEST_PAGES = 16


@dataclass(slots=True, eq=False)
class _Segment:
    """An open segment."""

    number: int
    path: Path
    size: int
    """Bytes of the file; where the next record of the newest segment goes."""
    places: dict[PageRef, Place] = field(default_factory=dict)
    used: dict[PageRef, None] = field(default_factory=dict)
    """Pages that were asked for since they were written, the last one last."""

    def note_use(self, ref: PageRef) -> None:
        """Note that a page was asked for."""
        self.used.pop(ref, None)
        self.used[ref] = None


class DiskTier:
    """See `tiers.tier.Tier`.

    Invariants:
        - The files together are at most `limit_bytes` long.
        - `_homes` names a segment exactly for the pages in its `places`.
    """

    name = "disk"

    def __init__(self, folder: Path, limit_bytes: int, facts: Mapping[str, object], page_bytes: int) -> None:
        """Open a directory, making it where it is missing, and find what it holds.

        Args:
            folder: Its path.
            limit_bytes: Most bytes of all files.
            facts: Whose pages these are: segments with other facts are foreign.
            page_bytes: Bytes of the largest page, its tokens included.

        Raises:
            ConfigError: The directory is not ours alone, is in use, cannot be used, or the bound holds too few pages.
        """
        self._head = make_head(facts)
        record = RECORD_BYTES + len(self._head) + page_bytes
        if limit_bytes < _FEWEST_PAGES * record:
            raise ConfigError(
                f"disk_cache is {format_bytes(limit_bytes)}, which holds {limit_bytes // record} KV pages of "
                f"{format_bytes(page_bytes)}; give room for {_FEWEST_PAGES} or more: "
                f"{format_bytes(_FEWEST_PAGES * record)}"
            )
        self._folder = folder
        self._facts = dict(facts)
        self._segment_bytes = min(_SEGMENT_BYTES, limit_bytes // _FEWEST_SEGMENTS)
        self._stats = TierStats(limit_bytes=limit_bytes)
        self._segments: OrderedDict[int, _Segment] = OrderedDict()
        self._foreign: OrderedDict[int, tuple[Path, int]] = OrderedDict()
        self._homes: dict[PageRef, _Segment] = {}
        self._newest: _Segment | None = None
        self._last_number = -1
        self._has_told_damage = False
        self._listener: TierListener = NobodyListens()
        self._hold = open_folder(folder)
        try:
            self._find_segments()
            while self._stats.num_bytes > limit_bytes and self._evict([]):
                pass
        except OSError as error:
            self._hold.close()
            raise ConfigError(f"disk_cache: '{folder}' cannot be read: {error.strerror or error}") from error

    # -- the contract -----------------------------------------------------------------------------------------

    def where(self, ref: PageRef) -> str | None:
        """Return `disk` when the page is here."""
        return self.name if ref in self._homes else None

    def put(self, page: StoredPage) -> None:
        """Keep a page, evicting others where need be."""
        home = self._homes.get(page.facts.ref)
        if self._stats.is_off:
            return
        if home is not None:
            home.note_use(page.facts.ref)
            return
        try:
            num_bytes = RECORD_BYTES + len(page.facts.tokens) + page.num_bytes
            segment = self._room_for(num_bytes)
            place = append_page(segment.path, segment.size, page)
        except OSError as error:
            self._switch_off("writing to", error)
            return
        self._note(segment, page.facts.ref, place)
        self._stats.num_written += 1
        self._stats.bytes_written += page.num_bytes
        self._listener.moved(page.facts, self.name)

    def get(self, facts: PageFacts) -> bytes | None:
        """Return the bytes of a page, verified completely; an entry that is damaged goes."""
        segment = self._homes.get(facts.ref)
        if segment is None or self._stats.is_off:
            return None
        try:
            with opened(segment.path) as file:
                content = read_page(file, segment.places[facts.ref], facts)
        except OSError as error:
            self._switch_off("reading from", error)
            return None
        if content is None:
            self._drop_damaged(segment, facts.ref)
            return None
        segment.note_use(facts.ref)
        self._stats.num_read += 1
        self._stats.bytes_read += len(content)
        return content

    def clear(self) -> None:
        """Remove every file, foreign ones too."""
        while self._segments:
            self._remove(next(iter(self._segments.values())))
        for path, _ in self._foreign.values():
            remove(path)
        self._foreign.clear()
        self._stats.num_bytes = 0

    def listen(self, listener: TierListener) -> None:
        """Tell `listener` what is here, and what becomes of it."""
        self._listener = listener
        if self._homes:
            listener.found(list(self._homes), self.name)

    def stats(self) -> dict[str, TierStats]:
        """Return the statistics of this tier, by name."""
        self._stats.num_pages = len(self._homes)
        return {self.name: self._stats}

    def close(self) -> None:
        """Let go of the directory; what is written stays."""
        self._segments.clear()
        self._homes.clear()
        self._newest = None
        self._hold.close()

    # -- segments ---------------------------------------------------------------------------------------------

    def _find_segments(self) -> None:
        """Look through the directory; the newest entry of a page counts.

        Raises:
            OSError: The directory or a file cannot be read.
        """
        for number, path in segment_paths(self._folder):
            self._last_number = max(self._last_number, number)
            with opened(path) as file:
                size = os.fstat(file).st_size
                self._stats.num_bytes += size
                head = read_head(file)
                if head is None or head[0] != self._facts:
                    self._stats.num_damaged += head is None
                    self._foreign[number] = (path, size)
                    continue
                segment = self._segments[number] = _Segment(number, path, size)
                end = head[1]
                for ref, place in scan(file, head[1], size):
                    if (older := self._homes.get(ref)) is not None:
                        del older.places[ref]
                    segment.places[ref] = place
                    self._homes[ref] = segment
                    end = place.end
            self._stats.num_damaged += end < size
        if self._stats.num_damaged:
            logger.warning(
                "disk cache %s: %d files have a damaged beginning or end, which is not used",
                self._folder,
                self._stats.num_damaged,
            )

    def _room_for(self, num_bytes: int) -> _Segment:
        """Return the segment to append to, after making room.

        Raises:
            OSError: No segment can be begun, or none read.
        """
        rescued: list[tuple[PageRef, Place, bytes]] = []
        needed = num_bytes + 2 * len(self._head)
        while self._stats.num_bytes + needed > self._stats.limit_bytes and self._evict(rescued):
            needed = num_bytes + 2 * len(self._head) + sum(len(raw) for _, _, raw in rescued)
        for ref, place, raw in rescued:
            segment = self._newest_with(len(raw))
            append(segment.path, segment.size, raw)
            self._note(segment, ref, place.moved_to(segment.size))
            self._stats.num_evicted -= 1
        return self._newest_with(num_bytes)

    def _newest_with(self, num_bytes: int) -> _Segment:
        """Return the newest segment if it has room for so much, else a new one.

        Raises:
            OSError: No segment can be begun.
        """
        segment = self._newest
        if segment is None or segment.size + num_bytes > self._segment_bytes:
            self._last_number += 1
            path = segment_path(self._folder, self._last_number)
            begin(path, self._head)
            segment = self._newest = self._segments[self._last_number] = _Segment(
                self._last_number, path, len(self._head)
            )
            self._stats.num_bytes += segment.size
        return segment

    def _evict(self, rescued: list[tuple[PageRef, Place, bytes]]) -> bool:
        """Remove the oldest segment, foreign ones first; what was read from it is added to `rescued`.

        At most half a segment is rescued at a time, what was read last first.

        Returns:
            Whether there was one to remove.

        Raises:
            OSError: What is to be rescued cannot be read.
        """
        if self._foreign:
            _, (path, size) = self._foreign.popitem(last=False)
            remove(path)
            self._stats.num_bytes -= size
            return True
        oldest = next(iter(self._segments.values()), None)
        if oldest is None or oldest is self._newest:
            return False
        room = self._segment_bytes // 2 - sum(len(raw) for _, _, raw in rescued)
        with opened(oldest.path) as file:
            for ref in reversed(oldest.used):
                place = oldest.places[ref]
                if place.num_bytes <= room:
                    rescued.append((ref, place, read_record(file, place)))
                    room -= place.num_bytes
        self._stats.num_evicted += len(oldest.places)
        kept = {ref for ref, _, _ in rescued}
        self._remove(oldest)
        if lost := [ref for ref in oldest.places if ref not in kept]:
            self._listener.lost(lost, self.name)
        return True

    def _note(self, segment: _Segment, ref: PageRef, place: Place) -> None:
        segment.places[ref] = place
        segment.size = place.end
        self._homes[ref] = segment
        self._stats.num_bytes += place.num_bytes

    def _remove(self, segment: _Segment) -> None:
        for ref in segment.places:
            if self._homes.get(ref) is segment:
                del self._homes[ref]
        del self._segments[segment.number]
        if segment is self._newest:
            self._newest = None
        remove(segment.path)
        self._stats.num_bytes -= segment.size

    def _drop_damaged(self, segment: _Segment, ref: PageRef) -> None:
        del self._homes[ref], segment.places[ref]
        segment.used.pop(ref, None)
        level = logging.DEBUG if self._has_told_damage else logging.WARNING
        logger.log(level, "disk cache %s: dropped a damaged entry of %s", self._folder, segment.path.name)
        self._has_told_damage = True
        self._stats.num_damaged += 1
        self._listener.lost([ref], self.name)

    def _switch_off(self, doing: str, error: OSError) -> None:
        """End the use of the tier: nothing is found any more, nothing is kept."""
        self._stats.is_off = True
        self._homes.clear()
        self._listener.cleared([self.name])
        logger.error(
            "disk cache off until the next start: %s %s failed: %s", doing, self._folder, error.strerror or error
        )
