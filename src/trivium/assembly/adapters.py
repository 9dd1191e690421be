"""The adapters of an engine that is being built: those of `--lora`, or those of the engine before."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trivium.base.errors import AdapterError, CapacityError, ConfigError, InvalidParameterError
from trivium.config.limits import parse_adapters

if TYPE_CHECKING:
    from trivium.assembly.model import OpenModel, Report
    from trivium.config.options import EngineOptions
    from trivium.engine.adapters import AdapterRecord, EngineAdapters
    from trivium.runtime.executor import Executor
    from trivium.schedule.adapter_slots import AdapterSlots
    from trivium.weights.peft import PeftAdapter

logger = logging.getLogger(__name__)


def make_adapters(options: EngineOptions, model: OpenModel, executor: Executor, slots: AdapterSlots) -> EngineAdapters:
    """Make what keeps the adapters of an executor; none is loaded."""
    from trivium.engine.adapters import EngineAdapters  # noqa: PLC0415  (start-up time)
    from trivium.runtime.memory import available_bytes  # noqa: PLC0415

    def read(folder: Path) -> PeftAdapter:
        from trivium.weights.peft import read_peft  # noqa: PLC0415  (start-up time: most have none)

        return read_peft(folder, executor.adapter_shapes, model.config, max_rank=options.adapters.max_lora_rank)

    return EngineAdapters(executor, slots, read, available_bytes)


def load_asked(adapters: EngineAdapters, options: EngineOptions, report: Report) -> None:
    """Load the adapters of `--lora`.

    Raises:
        ConfigError: One cannot be loaded.
    """
    from trivium.engine.adapter_names import check_adapter_name  # noqa: PLC0415  (start-up time)

    asked = parse_adapters(options.adapters.lora)
    for number, (name, path) in enumerate(asked.items()):
        report("loading adapters", number, len(asked))
        try:
            check_adapter_name(name)
            adapters.load(name, str(path.absolute()), number + 1)
        except (AdapterError, CapacityError, InvalidParameterError) as error:
            raise ConfigError(f"lora '{name}={path}' cannot be loaded: {error}") from error


def restore(adapters: EngineAdapters, records: Sequence[AdapterRecord]) -> None:
    """Load what an earlier engine had, as far as it is still there, unchanged; what is not is logged."""
    for record in records:
        try:
            adapters.load(record.name, record.path, record.generation, record.fingerprint)
        except (AdapterError, CapacityError) as error:
            logger.error("an adapter is lost with the engine that had it: %s", error)  # noqa: TRY400 - no fault of ours
