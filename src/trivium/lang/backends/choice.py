"""Which backend programs run on: what a run is given, or the default."""

from __future__ import annotations

import atexit
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from trivium.api import LLM, AsyncLLM
from trivium.base.errors import ConfigError, UnsupportedFeatureError
from trivium.lang.backends.endpoint import RuntimeEndpoint
from trivium.lang.backends.in_process import InProcess, InThread
from trivium.lang.driver import driver

if TYPE_CHECKING:
    from trivium.lang.backends import Backend

_lock = Lock()
_default: list[Backend] = []
_of_models: WeakKeyDictionary[LLM, Backend] = WeakKeyDictionary()
_of_addresses: dict[str, RuntimeEndpoint] = {}


def set_default_backend(backend: Any) -> None:
    """Run programs on this from now on: a `trivium.LLM`, an `AsyncLLM` that is loaded, an address, or a backend.

    Raises:
        EngineDeadError: There is no server at that address.
        UnsupportedFeatureError: It is something that programs cannot run on.
    """
    _default[:] = [] if backend is None else [backend_of(backend)]


def backend_of(given: Any) -> Backend:
    """Return the backend of a model or an address, a backend itself, or the default for `None`.

    Raises:
        ConfigError: There is no default.
        EngineDeadError: There is no server at that address.
        UnsupportedFeatureError: It is something that programs cannot run on.
    """
    if given is None:
        if not _default:
            raise ConfigError(
                "programs have nothing to run on; call set_default_backend(trivium.LLM(...)), or pass backend="
            )
        return _default[0]
    if all(hasattr(given, name) for name in ("submit", "render", "codec")):
        found: Backend = given
        return found
    if isinstance(given, LLM):
        return _of_model(given)
    if isinstance(given, AsyncLLM):
        return InThread(given)
    if isinstance(given, str):
        return _of_address(given)
    if hasattr(given, "endpoint"):
        return backend_of(given.endpoint)
    raise UnsupportedFeatureError(
        f"programs cannot run on {type(given).__name__}; backends are trivium.LLM, trivium.AsyncLLM, the address of a "
        "Trivium server, RuntimeEndpoint, Runtime, Engine, OpenAI, Anthropic and ScriptedBackend",
        param="backend",
    )


def backend_or_none(given: Any) -> Backend | None:
    """Return a backend as `backend_of` does, or `None` where there is no default."""
    return backend_of(given) if given is not None or _default else None


def _of_model(llm: LLM) -> Backend:
    with _lock:
        if llm not in _of_models:
            _of_models[llm] = InProcess(llm)
        return _of_models[llm]


def _of_address(url: str) -> Backend:
    with _lock:
        if url not in _of_addresses:
            _of_addresses[url] = RuntimeEndpoint(url)
        return _of_addresses[url]


def forget_backends() -> None:
    """Stop all programs and let their models go, as the interpreter does with what is its own when it ends."""
    driver.stop()
    for backend in (*_default, *_of_models.values()):
        if isinstance(backend, InProcess):
            backend.wait()
    _default.clear()
    _of_models.clear()
    _of_addresses.clear()


atexit.register(forget_backends)


def default_backend() -> Backend | None:
    """Return what programs run on by default, if that is set."""
    return _default[0] if _default else None


def flush_cache(backend: Any = None, empty_cache: bool = True) -> bool:  # noqa: FBT001, FBT002  (SGLang's signature)
    """Forget cached prefixes that no running request uses; returns whether there is a backend.

    Args:
        backend: `None` takes the default.
        empty_cache: Whether SGLang also empties the allocator of its device; here nothing is kept beside the pages.
    """
    if backend is None and not _default:
        return False
    backend_of(backend).flush_cache()
    return True


def get_server_info(backend: Any = None) -> dict[str, Any] | None:
    """Return what is known of the model that programs run on; `None` where there is no backend."""
    if backend is None and not _default:
        return None
    return dict(backend_of(backend).info)
