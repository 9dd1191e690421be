"""An executor without a model: its "KV" are hashes, written into pages and read back through the page tables.

The KV value of a token depends on the token, its position and everything that its request could see before it; the
next token depends on all KV values that the last row can see. One wrong page, copy, window or length anywhere
changes the tokens. `tokens_alone` says what a request would draw with nobody else around, without any pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trivium.cache.spec import KVSpec
from trivium.schedule.step import Step

_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """Splitmix64: spread 64 bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def kv_value(group: int, token: int, position: int, seen: int) -> int:
    """KV of one token in one group."""
    return mix(seen ^ mix(token * 1_000_003 + position) ^ mix(group + 7))


def seen_hash(per_group: Sequence[int]) -> int:
    """Join what a row sees in all groups."""
    joined = 0
    for value in per_group:
        joined = mix(joined ^ value)
    return joined


class ScriptedExecutor:
    """Runs steps on hashes; `vocab_size` tokens."""

    def __init__(self, spec: KVSpec, num_pages: Sequence[int], vocab_size: int = 50) -> None:
        self.kv_spec = spec
        self.num_pages = tuple(num_pages)
        self.vocab_size = vocab_size
        self._kv = [np.zeros((count, spec.page_len), np.uint64) for count in num_pages]
        self.seen: list[int] = []
        """What each wanted row of the last step could see, hashed."""
        self.num_tokens_run = 0

    def forward(self, step: Step) -> None:
        """Execute copies, then each request's tokens in order."""
        for group, source, target in step.copies.tolist():
            self._kv[group][target] = self._kv[group][source]
        wanted = dict.fromkeys(step.logit_rows.tolist(), 0)
        written: set[tuple[int, int, int]] = set()
        for idx in range(step.num_requests):
            start, end = int(step.starts[idx]), int(step.starts[idx + 1])
            assert int(step.positions[end - 1]) + 1 == int(step.kv_lens[idx])
            for row in range(start, end):
                seen = self._run_token(step, idx, int(step.token_ids[row]), int(step.positions[row]), written)
                if row in wanted:
                    wanted[row] = seen
        self.seen = list(wanted.values())
        self.num_tokens_run += step.num_tokens

    def _run_token(self, step: Step, idx: int, token: int, position: int, written: set[tuple[int, int, int]]) -> int:
        page_len = self.kv_spec.page_len
        groups = range(len(self._kv))
        before = seen_hash([self._sees(step, idx, group, position, position) for group in groups])
        for group, kv in enumerate(self._kv):
            page, slot = int(step.page_tables[group][idx, position // page_len]), position % page_len
            assert page >= 0, "a token is written to a page that is not held"
            assert (group, page, slot) not in written, "two tokens of one step are written to the same slot"
            written.add((group, page, slot))
            kv[page, slot] = kv_value(group, token, position, before)
        return seen_hash([self._sees(step, idx, group, position, position + 1) for group in groups])

    def _sees(self, step: Step, idx: int, group: int, position: int, end: int) -> int:
        """Hash what the row at `position` reads in `group` before position `end`."""
        window = self.kv_spec.groups[group].window
        first = 0 if window is None else max(0, position - window + 1)
        positions = np.arange(first, end)
        pages = step.page_tables[group][idx, positions // self.kv_spec.page_len]
        assert (pages >= 0).all(), "a row reads a page that is not held"
        values = self._kv[group][pages, positions % self.kv_spec.page_len]
        return int((values * (2 * positions + 1).astype(np.uint64)).sum(dtype=np.uint64))

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Bytes of a page, by group."""
        return (8 * self.kv_spec.page_len,) * len(self._kv)

    def export_page(self, group_idx: int, page: int) -> bytes:
        """Return the hashes in a page."""
        return self._kv[group_idx][page].tobytes()

    def import_page(self, group_idx: int, page: int, content: bytes) -> None:
        """Write what `export_page` gave."""
        self._kv[group_idx][page] = np.frombuffer(content, np.uint64)

    def drawn(self) -> list[int]:
        """Return the next token of every wanted row of the last step."""
        return [mix(seen ^ 0x5555) % self.vocab_size for seen in self.seen]


class LonelyKV:
    """What the rows of one sequence see, computed without pages, batches or caches."""

    def __init__(self, spec: KVSpec) -> None:
        self._groups = spec.groups
        self._kv = [np.zeros(0, np.uint64) for _ in spec.groups]

    def run(self, token: int) -> int:
        """Append a token; return what its row sees, hashed."""
        position = len(self._kv[0])
        before = self._seen(position)
        for group, values in enumerate(self._kv):
            self._kv[group] = np.append(values, np.uint64(kv_value(group, token, position, before)))
        return self._seen(position)

    def _seen(self, position: int) -> int:
        pairs = zip(self._groups, self._kv, strict=True)
        return seen_hash([_sum(values, group.window, position) for group, values in pairs])


def tokens_alone(spec: KVSpec, prompt: Sequence[int], count: int, vocab_size: int = 50) -> list[int]:
    """Return the `count` tokens that follow `prompt`, computed without pages, batches or caches."""
    kv, tokens = LonelyKV(spec), list(prompt)
    for position in range(len(prompt) + count - 1):
        seen = kv.run(tokens[position])
        if position >= len(prompt) - 1:
            tokens.append(mix(seen ^ 0x5555) % vocab_size)
    return tokens[len(prompt) :]


def _sum(values: np.ndarray, window: int | None, position: int) -> int:
    first = 0 if window is None else max(0, position - window + 1)
    weights = (2 * np.arange(first, len(values)) + 1).astype(np.uint64)
    return int((values[first:] * weights).sum(dtype=np.uint64))
