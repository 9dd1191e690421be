"""`Runtime`: a server of its own for the programs of this process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from trivium.base.errors import ConfigError, EngineDeadError
from trivium.config.options import EngineOptions, ServerOptions
from trivium.config.resolve import Settings, resolve
from trivium.lang.backends.endpoint import RuntimeEndpoint
from trivium.lang.backends.sglang_options import own_options

_POLL_S = 0.1
_END_S = 15.0
_SHOWN_LINES = 12
_LOCAL = "127.0.0.1"
_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104  (told apart, not bound)


class Runtime:
    """Starts `trivium serve` in a process of its own and ends it with this one; the name is SGLang's.

    >>> runtime = Runtime(model_path="smollm2", max_num_seqs=32)                 # doctest: +SKIP
    >>> sgl.set_default_backend(runtime)                                         # doctest: +SKIP
    >>> runtime.shutdown()                                                       # doctest: +SKIP

    It is also a context manager. `endpoint` is the backend, `url` the server's address, for other clients too.
    """

    def __init__(self, log_level: str = "error", launch_timeout: float = 300.0, **options: Any) -> None:
        """Start the server and wait until it answers.

        Args:
            log_level: How much the server says; it is shown where the server cannot start.
            launch_timeout: Seconds to wait for it.
            options: Those of `trivium serve`, by their names or by SGLang's (`model_path`, `context_length`, …). The
                port is a free one unless given.

        Raises:
            ConfigError: An option is unknown or has a bad value.
            EngineDeadError: The server did not start in time, or at all; the message has its last words.
        """
        given = {"log_level": log_level, "host": _LOCAL, "port": _free_port(), **own_options(options)}
        if isinstance(given.get("api_key"), str):
            given["api_key"] = (given["api_key"],)
        settings = resolve((EngineOptions, ServerOptions), arguments=given)
        self.port: int = settings["port"]
        if settings["ssl_certfile"] is not None:
            raise ConfigError("ssl_certfile is set; a Runtime speaks plain HTTP with this process")
        self.url = f"http://{_LOCAL if settings['host'] in _ALL_ADDRESSES else settings['host']}:{self.port}"
        folder = TemporaryDirectory(prefix="trivium-runtime-")
        log = Path(folder.name) / "log"
        process = _start(Path(folder.name), settings, given, log)
        self.pid = process.pid
        self._end = weakref.finalize(self, _stop, process, folder)
        try:
            self._wait(process, log, launch_timeout)
            self.endpoint = RuntimeEndpoint(self.url, api_key=_key(given))
        except BaseException:
            self._end()
            raise

    def shutdown(self) -> None:
        """End the server; requests that are open fail."""
        self.endpoint.close()
        self._end()

    def flush_cache(self) -> None:
        """Forget cached prefixes that no running request uses."""
        self.endpoint.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        """Return what the server says of itself."""
        return dict(self.endpoint.info)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _wait(self, process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> None:
        import httpx  # noqa: PLC0415  (start-up time)

        end_s = time.monotonic() + timeout_s
        while process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health_generate", timeout=timeout_s).status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            if time.monotonic() > end_s:
                raise EngineDeadError(f"the server was not ready within {timeout_s:g} s; it says:\n{_last_words(log)}")
            time.sleep(_POLL_S)
        raise EngineDeadError(f"the server ended with code {process.returncode}; it says:\n{_last_words(log)}")


def _start(folder: Path, settings: Settings, given: Mapping[str, Any], log: Path) -> subprocess.Popen[bytes]:
    """Start the server with the options in a file, where no list of processes shows its keys."""
    written = folder / "options.json"
    values = {name: settings.by_name[name].value for name in given}
    written.write_text(json.dumps(values, default=str), encoding="utf-8")
    overruled = {settings.by_name[name].option.variable for name in given}  # a variable would go before the file
    environ = {name: value for name, value in os.environ.items() if name not in overruled}
    with log.open("wb") as sink:
        return subprocess.Popen(  # noqa: S603  (our own program)
            [sys.executable, "-m", "trivium", "serve", "--config", str(written)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environ,
        )


def _stop(process: subprocess.Popen[bytes], folder: TemporaryDirectory[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    folder.cleanup()


def _last_words(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]) or "nothing"


def _key(given: Mapping[str, Any]) -> str | None:
    """Return the key that the backend uses: an admin key where there is no other, so that it may flush."""
    for name in ("api_key", "admin_key"):
        for entry in given.get(name) or ():
            label, separator, key = str(entry).partition("=")
            return key if separator else label
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOCAL, 0))
        port: int = probe.getsockname()[1]
        return port
