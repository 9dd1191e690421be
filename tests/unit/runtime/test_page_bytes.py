"""Pages of every executor leave and come back bit for bit; what is no page is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.tiny_engine import run_alone, tiny_loop
from trivium.base.errors import InternalError
from trivium.config.sampling import SamplingParams
from trivium.kernels import native

EXECUTORS = ["reference"] if native.load() is None else ["reference", "native"]


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Any:
    """An executor that has computed something."""
    loop = tiny_loop(executor=request.param, window=24)
    run_alone(loop, list(range(40, 90)), SamplingParams(max_tokens=4, temperature=0.0))
    return loop._executor


def test_an_exported_page_is_the_same_elsewhere(executor: Any) -> None:
    for group, num_bytes in enumerate(executor.page_bytes):
        contents = [bytes(executor.export_page(group, page)) for page in range(3)]
        assert {len(content) for content in contents} == {num_bytes}
        assert len(set(contents)) > 1
        for page, content in enumerate(contents):
            executor.import_page(group, page + 3, content)
            assert bytes(executor.export_page(group, page + 3)) == content


def test_an_exported_page_does_not_change_with_the_pool(executor: Any) -> None:
    first, second = executor.export_page(0, 0), bytes(executor.export_page(0, 1))
    before = bytes(first)
    executor.import_page(0, 0, second)
    assert bytes(first) == before


@pytest.mark.parametrize(("group", "page"), [(0, -1), (0, 1 << 20), (-1, 0), (9, 0)])
def test_pages_and_groups_that_do_not_exist_are_refused(executor: Any, group: int, page: int) -> None:
    with pytest.raises(InternalError, match="KV group"):
        executor.export_page(group, page)
    with pytest.raises(InternalError, match="KV group"):
        executor.import_page(group, page, bytes(executor.page_bytes[0]))


def test_what_is_no_page_is_refused_and_changes_nothing(executor: Any) -> None:
    before = bytes(executor.export_page(0, 0))
    infinite = np.full(executor.page_bytes[0] // 4, np.inf, np.float32).tobytes()
    for content in (b"", before[:-1], before + b"\0", infinite):
        with pytest.raises(InternalError):
            executor.import_page(0, 0, content)
    assert bytes(executor.export_page(0, 0)) == before


def test_a_closed_executor_has_no_pages(executor: Any) -> None:
    executor.close()
    with pytest.raises(InternalError, match="closed"):
        executor.export_page(0, 0)
