"""Which executor runs a model, and what each needs before it can be made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trivium.base.errors import ConfigError
from trivium.kernels import native

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trivium.assembly.model import OpenModel, Report
    from trivium.cache.spec import KVSpec
    from trivium.config.options import EngineOptions
    from trivium.runtime.executor import Executor


class ExecutorParts(Protocol):
    """An executor that is understood but holds no memory yet."""

    @property
    def name(self) -> str:
        """What it is called in options."""
        ...

    @property
    def arithmetic(self) -> str:
        """Formats that weights are multiplied in, for people and for the cache's namespace."""
        ...

    @property
    def kv_spec(self) -> KVSpec:
        """Groups, bytes and page length of the KV store."""
        ...

    @property
    def kv_dtype(self) -> str:
        """Element type of the KV store."""
        ...

    @property
    def kernel_facts(self) -> Mapping[str, str]:
        """Whatever else the bits and the layout of keys and values depend on: kernels, instruction set, library."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Memory that `make` takes beside the KV store."""
        ...

    def make(self, num_pages: tuple[int, ...], report: Report) -> Executor:
        """Load weights, take all memory, return the executor.

        Raises:
            ModelError: The checkpoint is not what its configuration says.
        """
        ...


def choose_executor(options: EngineOptions, model: OpenModel, report: Report) -> ExecutorParts:
    """Choose by options, then by what this machine and this installation can do.

    Args:
        options: `executor.executor` is `native`, `reference`, or `auto`: native where nothing speaks against it.
        model: What is to run.
        report: Told that a plan is being compiled, where it is.

    Raises:
        ConfigError: What was asked for is not possible here.
    """
    asked = options.executor.executor
    obstacle = native_obstacle(options)
    if asked == "native" and obstacle is not None:
        raise ConfigError(f"--executor native is not possible: {obstacle}; leave it at auto, or set it to reference")
    if asked == "reference" or obstacle is not None:
        _refuse_native_options(options, obstacle)
        from trivium.assembly.reference import ReferenceParts  # noqa: PLC0415  (start-up time)

        return ReferenceParts(options, model)
    from trivium.assembly.native import NativeParts  # noqa: PLC0415  (start-up time)

    report("compiling", 0, 1)
    parts = NativeParts(options, model)
    _ = parts.plan
    report("compiling", 1, 1)
    return parts


def native_obstacle(options: EngineOptions) -> str | None:
    """Return why the native executor cannot run, or nothing."""
    library, device = options.executor.array_library, options.executor.device
    if library != "numpy" or device != "cpu":
        return f"array_library is {library} and device is {device}, which only the reference executor heeds"
    if options.cache.page_len != native.PAGE_LEN:
        return f"page_len is {options.cache.page_len}, and native kernels have pages of {native.PAGE_LEN} tokens"
    if native.load() is None:
        return "the native kernels are not here (trivium doctor says why)"
    return None


def _refuse_native_options(options: EngineOptions, obstacle: str | None) -> None:
    """Refuse what only the native executor can do, where another one runs."""
    why = "" if obstacle is None else f", since {obstacle}"
    way_out = " out" if obstacle else " out, or set executor to native"
    found = {
        "weights": (options.executor.weights, options.executor.weights == "auto"),
        "activation_group": (options.executor.activation_group, options.executor.activation_group == "32"),
        "kv_cache_dtype": (options.cache.kv_cache_dtype, options.cache.kv_cache_dtype in {"auto", "f32"}),
        "plan": (options.compile.plan, options.compile.plan is None),
    }
    for name, (value, is_fine) in found.items():
        if not is_fine:
            raise ConfigError(
                f"{name} is {value}, but the reference executor runs{why}, and it computes in float32 without a plan; "
                f"leave {name}{way_out}"
            )
