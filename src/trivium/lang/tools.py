"""Calls of the author's functions, and who waits in them."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from trivium.base.errors import InvalidParameterError
from trivium.lang.driver import driver

if TYPE_CHECKING:
    from trivium.lang.strand import Strand

called_by: ContextVar[Strand | None] = ContextVar("called_by", default=None)
"""The strand whose tool runs in this context."""


def find_tool(tool: str | Callable[..., Any], known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function, or the one that a program knows by this name.

    Raises:
        InvalidParameterError: It knows none.
    """
    if callable(tool):
        return tool
    if tool not in known:
        raise InvalidParameterError(
            f"there is no tool '{tool}'; known are {', '.join(known) or 'none'} (see function(tools=...))"
        )
    return known[tool]


async def call_tool(
    function: Callable[..., Any], args: Mapping[str, Any], strand: Strand, context: contextvars.Context
) -> Any:
    """Call a function in a thread of its own, within the author's context; a coroutine function in this event loop."""
    called = context.copy()
    called.run(called_by.set, strand)
    if inspect.iscoroutinefunction(function):
        return await asyncio.get_running_loop().create_task(function(**args), context=called)
    return await asyncio.get_running_loop().run_in_executor(
        driver.tool_threads, lambda: called.run(lambda: function(**args))
    )
