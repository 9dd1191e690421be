"""The life of a server process: bind, load, serve, drain, end.

::

    bind + listen ─► serve HTTP ─► load the model, start its engine (503 until ready) ─► SIGTERM ─► drain ─► exit 0
         │ taken: exit 1 at once       │ cannot be loaded: exit 1                            │ again: end at once
                                       SIGHUP, any time after: options are read again (`reload`)

The port is taken before anything is loaded, so that a second server on it fails within a second. While draining, new
requests get 503, and so do queued ones of which nothing was computed yet: another server answers them sooner. Running
ones finish; after `drain_timeout_s` each of those left gets one error and the server ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from trivium.base.errors import ConfigError, TriviumError
from trivium.config.options import ServerOptions
from trivium.server.errors import ShuttingDownError
from trivium.server.http1 import Http1Protocol
from trivium.server.loading import Entrance, Found, ModelLife
from trivium.server.open_jobs import OpenJobs

logger = logging.getLogger(__name__)

LAST_WORDS_S = 2.0
"""Seconds that the last error events get to leave."""
RETRY_S = 5.0
"""Seconds after which a client of a server that stops is told to try again."""
BACKLOG = 2048
CONNECTION_KEEP_ALIVE_S = 65
EXIT_FAILED = 1
SIGNAL_EXIT_BASE = 128


class PortTakenError(ConfigError):
    """The address to listen on cannot be had."""

    code = "port_taken"


def bind_socket(options: ServerOptions) -> socket.socket:
    """Take the port and listen; connections wait until the application is there.

    Raises:
        PortTakenError: Somebody has it, or it may not be had; the message names it.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # The protocol must be said: asyncio sets TCP_NODELAY on connections only when their socket names TCP, and without
    # it every answer waits for the client's delayed acknowledgement (40 ms).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        # Listening at once, not when loading is done: two servers that only bind would both get the port.
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "another program listens there; choose another --port" if is_taken else str(error)
        raise PortTakenError(f"cannot listen on {options.host} port {options.port}: {reason}") from error
    return listener


async def serve(find: Callable[[], Found], listener: socket.socket, options: ServerOptions) -> int:
    """Serve until told to stop.

    Args:
        find: Finds the model; runs in a thread of its own.
        listener: From `bind_socket`.
        options: Times and TLS files.

    Returns:
        The exit code: 0 after a drain, 1 when the HTTP side fails, 128 + signal when told twice.

    Raises:
        TriviumError: The model cannot be served, or a TLS file cannot be used.
    """
    entrance, stops = Entrance(), _Stops()
    code: int | None = EXIT_FAILED
    server = _Listener(_http_config(entrance, options))
    life = ModelLife(find, entrance)
    with stops.listening(life.reload):
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        loading = asyncio.create_task(life.begin())
        stopping = asyncio.create_task(stops.first.wait())
        try:
            code = await _until_end(serving, loading, stopping)
            if code is None:
                code = await _drain(life, stops, life.drain_timeout_s(options))
        finally:
            server.should_exit = True
            server.force_exit = stops.second.is_set()
            for task in (loading, stopping):
                task.cancel()
            await asyncio.gather(loading, stopping, return_exceptions=True)
            await life.end(is_orderly=code == 0)
            await asyncio.gather(serving, return_exceptions=True)
    return code


async def _until_end(
    serving: asyncio.Task[None], loading: asyncio.Task[None], stopping: asyncio.Task[bool]
) -> int | None:
    """Wait for a reason to end; returns the exit code of a failure, or `None` when the server was told to stop.

    Raises:
        TriviumError: The model cannot be served.
    """
    tasks: set[asyncio.Task[None] | asyncio.Task[bool]] = {serving, loading, stopping}
    while True:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            return None
        if serving.done():
            logger.error("the HTTP side ended by itself: %s", serving.exception())
            return EXIT_FAILED
        if loading.done():
            loading.result()
            tasks.discard(loading)


async def _drain(life: ModelLife, stops: _Stops, timeout_s: float) -> int:
    """Hand queued jobs back, let running ones finish, then end those left; a second signal cuts it short."""
    jobs = life.jobs
    jobs.stop_accepting()
    logger.info("stopping: %d requests under way get up to %g s, queued ones are handed back", len(jobs), timeout_s)
    handing_back = asyncio.create_task(_hand_back(life))
    draining = asyncio.create_task(_finish_jobs(jobs, timeout_s))
    again = asyncio.create_task(stops.second.wait())
    try:
        await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
        if stops.second.is_set():
            return SIGNAL_EXIT_BASE + stops.last_signal
        draining.result()
        return 0
    finally:
        for task in (handing_back, draining, again):
            task.cancel()


async def _hand_back(life: ModelLife) -> None:
    error = ShuttingDownError("the server is shutting down before it began with the request", retry_after_s=RETRY_S)
    try:
        await life.hand_back_queued(error)
    except Exception:
        logger.exception("queued requests could not be handed back; they go on")


async def _finish_jobs(jobs: OpenJobs, timeout_s: float) -> None:
    if await jobs.wait_empty(timeout_s):
        return
    logger.warning("ending %d requests that did not finish in time", len(jobs))
    jobs.fail_all(ShuttingDownError("the server is shutting down and the request's time is up", retry_after_s=RETRY_S))
    await jobs.wait_empty(LAST_WORDS_S)


class _Stops:
    """SIGTERM and SIGINT, the first and the second."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.last_signal = 0

    @contextlib.contextmanager
    def listening(self, on_hangup: Callable[[], None]) -> Iterator[None]:
        """Take the signals while serving, where the platform and thread allow it; SIGHUP calls `on_hangup`."""
        loop = asyncio.get_running_loop()
        taken: list[signal.Signals] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.stop, number)
                taken.append(number)
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(signal.SIGHUP, on_hangup)
            taken.append(signal.SIGHUP)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    def stop(self, number: int) -> None:
        """Take one signal."""
        self.last_signal = number
        (self.second if self.first.is_set() else self.first).set()


class _Listener(uvicorn.Server):
    """uvicorn without its own signal handling."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `serve`."""
        yield


def _http_config(app: ASGIApp, options: ServerOptions) -> uvicorn.Config:
    """Configure the HTTP side, TLS included.

    Raises:
        ConfigError: A TLS file is missing or no PEM.
    """
    if options.ssl_keyfile is not None and options.ssl_certfile is None:
        raise ConfigError("ssl_keyfile needs ssl_certfile")
    config = uvicorn.Config(
        app,
        http=Http1Protocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=CONNECTION_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(LAST_WORDS_S),
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
    )
    try:
        config.load()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot use ssl_certfile {options.ssl_certfile} with ssl_keyfile {options.ssl_keyfile}: {error}"
        ) from error
    return config


def report_failure(error: TriviumError) -> int:
    """Say on standard error why the server cannot start; returns the exit code."""
    sys.stderr.write(f"trivium: {error}\n")
    return EXIT_FAILED
