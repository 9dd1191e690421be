"""Threads deep enough for the library, which goes as deep as a chain of references does, some 10 KB for each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_STACK_BYTES = 256 << 20

T = TypeVar("T")


def deep_pool(name: str, begin: Callable[[], None] | None = None) -> ThreadPoolExecutor:
    """Return a thread in which any constraint within the limits can be compiled without an overflow of its stack.

    Args:
        name: Of the thread.
        begin: What it does first.
    """
    before = threading.stack_size(_STACK_BYTES)
    try:
        pool = ThreadPoolExecutor(1, name, begin)
        pool.submit(int)  # a pool starts its thread when it gets work
    finally:
        threading.stack_size(before)
    return pool


def with_deep_stack(work: Callable[[], T]) -> T:
    """Do something in such a thread, and wait for it."""
    with deep_pool("trivium-grammar-anew") as pool:
        return pool.submit(work).result()
