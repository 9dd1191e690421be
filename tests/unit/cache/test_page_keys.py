"""Page keys: chained, exact to namespace and tokens, the same in every process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.base.errors import InternalError
from trivium.cache.kv_cache import KVCache
from trivium.cache.page_keys import KEY_BYTES, page_keys, root_key
from trivium.cache.page_runs import PageRun
from trivium.cache.spec import KVGroup, KVSpec

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.binary(max_size=4) | st.floats()
namespaces = st.recursive(scalars, lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=6)


def keys_of(tokens: list[int], page_len: int = 4, namespace: object = ()) -> list[bytes]:
    return page_keys(root_key(namespace), np.array(tokens, np.int32).tobytes(), page_len)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 2), max_size=20), st.integers(1, 5))
def test_keys_are_equal_exactly_when_all_tokens_up_to_the_pages_end_are(
    left: list[int], right: list[int], page_len: int
) -> None:
    for idx, (one, other) in enumerate(zip(keys_of(left, page_len), keys_of(right, page_len), strict=False)):
        end = (idx + 1) * page_len
        assert (one == other) == (left[:end] == right[:end])
        assert len(one) == KEY_BYTES


@given(namespaces, namespaces)
def test_roots_are_equal_exactly_when_namespaces_are(left: object, right: object) -> None:
    is_same = repr(left) == repr(right)  # unlike ==, it tells True from 1, and 0.0 from -0.0
    assert (root_key(left) == root_key(right)) == is_same  # type: ignore[arg-type]


def test_a_chain_may_be_computed_in_pieces() -> None:
    tokens = np.arange(12, dtype=np.int32).tobytes()
    whole = page_keys(root_key("m"), tokens, 4)
    first = page_keys(root_key("m"), tokens[: 4 * 4], 4)
    assert first + page_keys(first[-1], tokens[4 * 4 :], 4) == whole


def test_the_end_of_a_page_that_is_not_full_has_no_key() -> None:
    assert len(keys_of(list(range(11)))) == 2
    assert keys_of([1, 2, 3]) == []


def test_keys_outlive_the_process() -> None:
    code = "from trivium.cache.page_keys import *; print(root_key(('model', 'bf16', 0, '', (1, None))).hex())"
    outputs = {subprocess.check_output([sys.executable, "-c", code]) for _ in range(2)}  # noqa: S603
    assert outputs == {b"%b\n" % root_key(("model", "bf16", 0, "", (1, None))).hex().encode()}


def test_a_namespace_without_a_stable_form_is_refused() -> None:
    with pytest.raises(InternalError, match="of type object"):
        root_key(("model", object()))


class Recorder:
    def __init__(self) -> None:
        self.runs: list[tuple[str, PageRun]] = []

    def stored(self, run: PageRun) -> None:
        self.runs.append(("stored", run))

    def removed(self, run: PageRun) -> None:
        self.runs.append(("removed", run))


def test_a_listener_hears_what_is_stored_and_what_is_removed_with_pages_and_tokens() -> None:
    cache = KVCache(KVSpec((KVGroup("full", (0,), 8),), 4), [16], prefix_cache=True)
    recorder = Recorder()
    cache.index.listen(recorder)
    tokens = np.arange(14, dtype=np.int32)
    holding = cache.open(tokens, ("m",), 14)
    cache.grow(holding, 14)
    cache.settle(holding, tokens[:6])
    cache.settle(holding, tokens[4:14])
    pages = list(holding.pages[0])
    cache.close(holding, None)
    cache.index.flush()
    (first, second, removed) = [run for _, run in recorder.runs[:3]]
    keys = keys_of(list(range(14)), namespace=("m",))
    assert [kind for kind, _ in recorder.runs] == ["stored", "stored", "removed", "removed"]
    assert (first.first, list(first.keys), first.before) == (0, keys[:1], root_key(("m",)))
    assert (second.first, list(second.keys), second.before) == (1, keys[1:], keys[0])
    assert second.tokens.tolist() == list(range(4, 12))
    assert list(second.pages[0]) == pages[1:3]
    assert (removed.namespace, list(removed.keys), list(removed.pages[0])) == (("m",), keys[1:], pages[1:3])


def test_who_listens_too_late_is_told_so() -> None:
    cache = KVCache(KVSpec((KVGroup("full", (0,), 8),), 4), [16], prefix_cache=True)
    cache.open(np.arange(4, dtype=np.int32), (), 4)
    with pytest.raises(InternalError, match="before anything is"):
        cache.index.listen(Recorder())
