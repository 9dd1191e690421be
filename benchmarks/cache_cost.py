"""Time the prefix cache alone: milliseconds to match, enter and evict a long prompt in a large tree.

    python benchmarks/cache_cost.py [--prompt 32768] [--tree 1000000] [--rounds 15]

The tree holds prompts of 4,096 tokens, and one long one with branches off it: none, or one every so many tokens, each
of which makes a node more on the path. Prints medians over rounds, and the slowest round. Fails when a median of what
is promised exceeds 1 ms (see docs/performance.md). Not promised, but shown: evicting as many pages when each is a leaf
of its own, which costs Python per leaf; a step needs no more pages than its chunk has.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from trivium.cache.kv_cache import KVCache
from trivium.cache.spec import KVGroup, KVSpec

PAGE_LEN = 16
SPEC = KVSpec((KVGroup("full", (0,), 1024),), PAGE_LEN)
PROMISED_MS = 1.0
SHORT_LEN, BRANCH_LEN, VOCAB_SIZE = 4096, 8, 50_000
BRANCHINGS = (0, 512, 64, 16)


class Tree:
    """A prefix cache with a long prompt, branches off it, and other prompts up to a number of tokens."""

    def __init__(self, prompt_len: int, tree_len: int, branch_every: int) -> None:
        self._random = np.random.default_rng(0)
        num_pages = 2 * (tree_len + prompt_len) // PAGE_LEN
        self.cache = KVCache(SPEC, [num_pages], prefix_cache=True)
        self.prompt = self.new_tokens(prompt_len)
        self.branch_every = branch_every
        self.enter(self.prompt)
        self.branch()
        for _ in range((tree_len - prompt_len) // SHORT_LEN):
            self.enter(self.new_tokens(SHORT_LEN))

    def new_tokens(self, count: int) -> np.ndarray:
        """Return tokens that nobody had before."""
        return self._random.integers(0, VOCAB_SIZE, count).astype(np.int32)

    def branch(self) -> None:
        """Enter every branch."""
        if not self.branch_every:
            return
        for at in range(self.branch_every, len(self.prompt), self.branch_every):
            self.enter(np.concatenate([self.prompt[:at], self.new_tokens(BRANCH_LEN)]))

    def enter(self, tokens: np.ndarray) -> None:
        """Run a request for `tokens` that computes what is not cached."""
        holding = self.cache.open(tokens, (), len(tokens))
        self.cache.grow(holding, len(tokens))
        self.cache.confirm_copies(holding)
        self.cache.close(holding, tokens[holding.locked_len :])


def timed(action: Callable[[], object]) -> float:
    """Return the milliseconds of one call."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


def hit_times(tree: Tree) -> dict[str, float]:
    """Time a request whose whole prompt is cached."""
    cache, prompt = tree.cache, tree.prompt
    longest = len(prompt) - 1
    times = {
        "match length": timed(lambda: cache.index.match_len(prompt, (), longest)),
        "match": timed(lambda: cache.index.match(prompt, (), longest)),
    }
    began = time.perf_counter()
    holding = cache.open(prompt, (), longest)
    times["open (match, lock, share)"] = (time.perf_counter() - began) * 1e3
    cache.grow(holding, len(prompt))
    cache.confirm_copies(holding)
    times["close a hit"] = timed(lambda: cache.close(holding, prompt[holding.locked_len :]))
    return times


def fresh_times(tree: Tree) -> dict[str, float]:
    """Time a request of as many tokens, of which none is cached, and two at once that compute the same."""
    cache, tokens = tree.cache, tree.new_tokens(len(tree.prompt))
    first, twin = cache.open(tokens, (), len(tokens)), cache.open(tokens, (), len(tokens))
    for holding in (first, twin):
        cache.grow(holding, len(tokens))
    return {
        "insert": timed(lambda: cache.settle(first, tokens)),
        "close": timed(lambda: cache.close(first, None)),
        "insert what a twin entered": timed(lambda: cache.close(twin, tokens)),
    }


def evict_times(tree: Tree) -> dict[str, float]:
    """Time making room for the prompt; the least recently used are the short prompts."""
    pool = tree.cache.pools[0]
    num_pages = len(tree.prompt) // PAGE_LEN
    elapsed = timed(lambda: tree.cache.index.evict(0, pool.num_free + num_pages))
    for _ in range(num_pages * PAGE_LEN // SHORT_LEN):
        tree.enter(tree.new_tokens(SHORT_LEN))
    return {"evict": elapsed}


def leaf_times(tree: Tree) -> dict[str, float]:
    """Time evicting the branches, page by page a leaf of its own, from a tree where nothing is older."""
    small = Tree(len(tree.prompt), len(tree.prompt), PAGE_LEN)
    pool = small.cache.pools[0]
    num_leaves = len(tree.prompt) // PAGE_LEN - 1
    return {
        f"evict {num_leaves} leaves of one page": timed(lambda: small.cache.index.evict(0, pool.num_free + num_leaves))
    }


PROMISED = (hit_times, fresh_times, evict_times)


def measure(tree: Tree, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of every round by what was done."""
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for part in PROMISED:
            for name, elapsed in part(tree).items():
                times.setdefault(name, []).append(elapsed)
    return times


def show(branching: str, name: str, times: list[float], limit_ms: float | None) -> bool:
    """Print one line; return whether the promise is kept."""
    middle = statistics.median(times)
    is_kept = limit_ms is None or middle <= limit_ms
    verdict = "" if limit_ms is None else "ok" if is_kept else f"MORE THAN {limit_ms:g} ms"
    print(f"{branching:>12}  {name:32s} p50 {middle:7.3f}  max {max(times):7.3f} ms  {verdict}", flush=True)
    return is_kept


def main() -> int:
    """Measure all trees; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=32_768, help="tokens of the long prompt")
    parser.add_argument("--tree", type=int, default=1_000_000, help="tokens in the tree")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    is_kept = True
    for branch_every in BRANCHINGS:
        tree = Tree(options.prompt, options.tree, branch_every)
        branching = f"every {branch_every}" if branch_every else "no branches"
        for name, times in measure(tree, options.rounds).items():
            is_kept &= show(branching, name, times, PROMISED_MS)
    single = [elapsed for _ in range(3) for elapsed in leaf_times(tree).values()]
    show("every 16", "evict a leaf per page", single, None)
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
