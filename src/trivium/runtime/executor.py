"""The contract of everything that can run a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trivium.cache.spec import KVSpec
    from trivium.runtime.adapters import Adapter, PreparedAdapter
    from trivium.sampling.batch import Draws, SampleRow
    from trivium.schedule.step import Step
    from trivium.weights.peft import Shapes


class Executor(Protocol):
    """Runs steps over weights and a KV store that it owns.

    An executor is used by one thread. `forward` leaves the logits of the step's wanted rows in the executor's own
    memory until the next `forward`; `sample` reads them from there.

    A device that runs by itself need not have begun when the two return; `sample` then promises the draws. Until these
    have given their `result`, step and rows stay as they are, no other step comes, and no page is moved. Whichever call
    raises, the step is given up with it.
    """

    @property
    def kv_spec(self) -> KVSpec:
        """Groups and page length of the KV store."""
        ...

    @property
    def num_pages(self) -> tuple[int, ...]:
        """Pages of each KV group."""
        ...

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Bytes of a page of each KV group, all layers: what `export_page` returns."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes that the weights take."""
        ...

    def forward(self, step: Step) -> None:
        """Execute copies, then the model; write KV of all tokens of the step.

        Raises:
            InternalError: The step contradicts the KV store; the KV of its tokens is undefined.
        """
        ...

    def export_page(self, group_idx: int, page: int) -> bytes | memoryview:
        """Return a copy of the bytes of a page, in the executor's own layout. Between steps.

        Raises:
            InternalError: There is no such page, or the executor is closed.
        """
        ...

    def import_page(self, group_idx: int, page: int, content: bytes) -> None:
        """Write what `export_page` of an executor for the same model, arithmetic and kernels gave. Between steps.

        Raises:
            InternalError: The content is not that of a page, or the executor is closed; nothing was written.
        """
        ...

    @property
    def adapter_shapes(self) -> Shapes:
        """Every parameter that adapters may add to, and its shape; empty where there can be none."""
        ...

    def prepare_adapter(self, adapter: Adapter) -> PreparedAdapter:
        """Check an adapter and bring it into the executor's layout. From any thread, also while a step runs.

        Raises:
            CheckpointError: It does not fit the model.
        """
        ...

    def place_adapter(self, slot: int, prepared: PreparedAdapter) -> None:
        """Let steps use an adapter: requests whose `adapter_slot` is `slot`. Between steps, at next to no cost.

        Raises:
            InternalError: The slot is taken, or there is none of that number.
        """
        ...

    def unload_adapter(self, slot: int) -> None:
        """Free a slot. Between steps.

        Raises:
            InternalError: It holds none.
        """
        ...

    def sample(self, rows: Sequence[SampleRow], masks: NDArray[np.uint32] | None = None) -> Draws:
        """Draw or score one token per wanted row of the last step.

        Args:
            rows: One record per entry of the step's `logit_rows`, in that order.
            masks: [masks, ceil(V / 32)] allowed tokens, bit i % 32 of word i // 32; `step.mask_row` chooses the row.
        """
        ...

    def close(self) -> None:
        """Give back memory and threads; the executor is not used afterwards."""
        ...
