"""What a plan or a timing holds for: the processor, and the kernels that run on it."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from trivium.base.errors import ConfigError
from trivium.kernels import native
from trivium.plan.cost import MachineLimits

_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The processor and the kernels of this process."""

    processor: str
    """Model name, as the processor gives it."""
    isa: str
    """Instruction-set level in use."""
    threads: int
    kernels: str
    """Version of the kernels' sources."""
    compiler: str
    """What built them: another compiler, other timings."""

    @property
    def digest(self) -> str:
        """Identity of all of it: 16 hexadecimal digits."""
        return hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        return f"{self.processor}, {self.isa}, {self.threads} threads"


def this_machine() -> Machine:
    """Describe what this process runs on; threads are those that are set now."""
    found = native.describe()
    return Machine(
        processor=processor_name(),
        isa=found.isa,
        threads=found.threads,
        kernels=native.kernel_version(),
        compiler=found.compiler,
    )


def measure_limits() -> MachineLimits:
    """Measure what this machine does at most with the threads that are set; takes half a second.

    Raises:
        ConfigError: The native kernels are missing, which do the measuring.
    """
    module = native.load()
    if module is None:
        raise ConfigError(
            "the native kernels, which are not here (trivium doctor says why), measure what this machine does at most"
        )
    memory, cached, int8, bf16, f32 = module.machine_limits()
    return MachineLimits(memory_bytes=memory, cache_bytes=cached, operations={"int8": int8, "bf16": bf16, "f32": f32})


@cache
def processor_name() -> str:
    """Return the processor's model name; its architecture where the system does not tell."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "unknown processor"
