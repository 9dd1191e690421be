"""A client of an API's own Python package: loaded when it is needed, one per event loop, with our errors."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary

from trivium.base.errors import ConfigError, RemoteError
from trivium.lang.driver import driver

Create = Callable[..., Awaitable[Any]]


class ApiClient:
    """Calls a package that is built as `openai` and `anthropic` are."""

    def __init__(self, package: str, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Load the package and try the arguments.

        Args:
            package: Its name.
            kind: The class of the client.
            args: Its arguments.
            kwargs: Its arguments by name.

        Raises:
            ConfigError: The package is not installed, or refuses the arguments.
        """
        try:
            self._package = importlib.import_module(package)
        except ImportError:
            raise ConfigError(
                f"this backend needs the package {package}; install it, or trivium with the extra 'remote'"
            ) from None
        self._make: Callable[[], Any] = lambda: getattr(self._package, kind)(*args, **kwargs)
        try:
            self._unused: Any = self._make()
        except Exception as error:
            raise ConfigError(f"{package}.{kind}: {error}") from None
        self.host: str = self._unused.base_url.host
        self._url = str(self._unused.base_url)
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    def of(self, path: str) -> Any:
        """Return a resource of the client of this event loop, such as `chat.completions`."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:  # connections belong to the loop in which they were made
            self._clients[loop], self._unused = self._unused or self._make(), None
            driver.closers[self._close] = None
        return reduce(getattr, path.split("."), self._clients[loop])

    async def call(self, create: Create, fields: Mapping[str, Any]) -> Any:
        """Call and return the whole answer.

        Raises:
            RemoteError: The server refused, failed, or cannot be reached.
        """
        try:
            return await create(**fields)
        except Exception as error:  # the package's, and those of what it sends with
            raise self._told(error) from error

    async def stream(self, create: Create, fields: Mapping[str, Any]) -> AsyncGenerator[Any]:
        """Call and yield the answer's events; closing the generator ends the request.

        Raises:
            RemoteError: The server refused, failed, or cannot be reached.
        """
        try:
            events = await create(**fields)
            async with events:
                async for event in events:
                    yield event
        except Exception as error:
            raise self._told(error) from error

    def close(self) -> None:
        """Close the connections of programs."""
        driver.submit(self._close()).result()

    async def _close(self) -> None:
        driver.closers.pop(self._close, None)
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _told(self, error: Exception) -> RemoteError:
        status = getattr(error, "status_code", None)
        said = getattr(error, "message", None) or str(error)
        if status is not None:
            return RemoteError(f"{self._url} answered {status}: {said}", status=status)
        return RemoteError(f"asking {self._url} failed: {said or type(error).__name__}")
