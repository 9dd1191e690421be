"""Which executor runs a model, and what each needs before it can be made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trivium.assembly.reference import ReferenceParts

if TYPE_CHECKING:
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

    Raises:
        ConfigError: What was asked for is not possible here.
    """
    return ReferenceParts(options, model)
