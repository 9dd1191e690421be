"""The native executor: formats, plan, packed weights, in the order in which they are needed.

::

    checkpoint ─ formats ─┬─ key ─► plan cache ─► plan (compiled when it is not there) ─┐
                          └─ specs ─► packed cache ─► panels (packed when not there) ───┴─► NativeExecutor
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trivium import __version__
from trivium.assembly.compiled import obtain_plan
from trivium.base.errors import ConfigError
from trivium.compile.version import compiler_version
from trivium.kernels import linear
from trivium.kernels.native import PAGE_LEN
from trivium.models import build_graph, kv_spec
from trivium.plan.format import Origin
from trivium.plan.key import plan_key
from trivium.plan.machine import this_machine
from trivium.plan.program import WIDE_GROUP, KVStorage, Limits
from trivium.runtime.native import NativeExecutor, NativeWeights
from trivium.runtime.packed import PackedCache, PackedSpec
from trivium.weights.bind import StoredAs, bind_parameters
from trivium.weights.kinds import scale_span
from trivium.weights.quantize import chosen_format
from trivium.weights.store import cache_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Literal

    from numpy.typing import NDArray

    from trivium.assembly.model import OpenModel, Report
    from trivium.config.options import EngineOptions
    from trivium.plan.key import PlanKey
    from trivium.plan.program import Plan, Weight
    from trivium.plan.store import HeldPlan
    from trivium.runtime.packed import PackedWeights
    from trivium.weights.bind import Parameter
    from trivium.weights.kinds import Codes

_KV_BYTES = {"f32": 4, "bf16": 2, "i8": 1}


class NativeParts:
    """See `assembly.choice.ExecutorParts`."""

    name = "native"

    def __init__(self, options: EngineOptions, model: OpenModel) -> None:
        """Find every weight and its format; nothing of them is read.

        Raises:
            ModelError: The checkpoint is not what its configuration says.
        """
        self._options = options
        self._model = model
        self.graph = build_graph(model.config)
        self.parameters = bind_parameters(model.checkpoint, self.graph.param_shapes(), model.config)
        self.activation_group = int(options.executor.activation_group)
        self.formats = {
            name: chosen_format(options.executor.weights, parameter.own_format, name, self.activation_group)
            for name, parameter in self.parameters.items()
            if len(parameter.shape) == 2  # noqa: PLR2004  (matrices; vectors stay float32)
        }
        self._check_activation_group()
        self.kv_dtype = self._kv_dtype()
        self.kv_spec = kv_spec(model.config, page_len=PAGE_LEN, element_bytes=_KV_BYTES[self.kv_dtype])

    @property
    def arithmetic(self) -> str:
        """Formats of the weights by their share of the bytes, largest first."""
        sizes: dict[str, int] = {}
        for name, known in self.formats.items():
            num_cols, depth = self.parameters[name].shape
            sizes[known] = sizes.get(known, 0) + linear.matrix_bytes(known, num_cols, depth)
        formats = ", ".join(sorted(sizes, key=lambda known: -sizes[known]))
        return f"{formats}; activations in groups of 64" if self.activation_group == WIDE_GROUP else formats

    @property
    def stored_parameters(self) -> Mapping[str, Parameter | StoredAs]:
        """Every parameter with the values that are multiplied: rounded where `weights` asked for another format."""
        stored = {name: StoredAs(self.parameters[name], known) for name, known in self.formats.items()}
        return {**self.parameters, **stored}

    @property
    def kernel_facts(self) -> Mapping[str, str]:
        """Whatever else the bits and the layout of keys and values depend on."""
        machine = this_machine()
        return {"isa": machine.isa, "kernels": machine.kernels, "compiler": compiler_version()}

    @cached_property
    def weight_bytes(self) -> int:
        """Memory of the packed weights and the arena: what `make` takes beside the KV store."""
        matrices = (weight for weight in self.plan.weights if len(weight.shape) == 2)  # noqa: PLR2004
        sizes = (linear.matrix_bytes(weight.format, weight.shape[0], weight.shape[1]) for weight in matrices)
        return self.plan.arena_bytes + sum(sizes)

    @property
    def plan(self) -> Plan:
        """The plan, from the cache or compiled now."""
        return self.held.plan

    @cached_property
    def held(self) -> HeldPlan:
        """The plan and how it was come by.

        Raises:
            PlanError: A plan was named, and cannot be read or does not fit.
        """
        return obtain_plan(self._options, self.key, self.origin, self.build)

    @property
    def origin(self) -> Origin:
        """What is said of a plan that is compiled now."""
        asked = self._options.model.model
        path = Path(asked).expanduser()
        model = str(path.absolute()) if self._model.path == path else asked
        return Origin(model=model, processor=this_machine().processor, trivium=__version__)

    @property
    def key(self) -> PlanKey:
        """What the plan must fit."""
        machine = this_machine()
        return plan_key(
            self._model.config,
            self.formats,
            self._kv,
            self._limits,
            activation_group=self.activation_group,
            isa=machine.isa,
            kernels=machine.kernels,
            compiler=compiler_version(),
        )

    def build(self, without: Collection[str] = ()) -> Plan:
        """Compile a plan.

        Args:
            without: Names of passes to leave out, to measure what they bring.
        """
        from trivium.compile.build import build_plan  # noqa: PLC0415  (start-up time: most plans are found)
        from trivium.compile.emit import PlanFacts  # noqa: PLC0415
        from trivium.compile.formats import format_named  # noqa: PLC0415

        facts = PlanFacts(
            config=self._model.config,
            formats={
                name: format_named(known).with_groups(self.activation_group) for name, known in self.formats.items()
            },
            kv=self._kv,
            limits=self._limits,
        )
        return build_plan(self.graph, facts, without=without)

    def packed(self, report: Report) -> PackedWeights:
        """Map the packed weights, packing them first where they are not here.

        Raises:
            CheckpointError: A weight is not finite.
        """
        matrices = {weight.name: weight for weight in self.plan.weights if len(weight.shape) == 2}  # noqa: PLR2004
        return PackedCache(self._cache).open(
            self._model.name,
            self._model.checkpoint.fingerprint,
            [_spec(weight) for weight in matrices.values()],
            linear.Packer(),
            lambda spec, start, end: self._codes(matrices[spec.name], start, end),
            report=lambda done, total: report("packing weights", done, total),
        )

    def make(self, num_pages: tuple[int, ...], report: Report) -> NativeExecutor:
        """Map the packed weights and take the KV store.

        Raises:
            CheckpointError: A weight is not finite.
        """
        packed = self.packed(report)
        vectors = {weight.name: self._vector(weight) for weight in self.plan.weights if len(weight.shape) == 1}
        return NativeExecutor(self.plan, NativeWeights(matrices=packed.matrices, vectors=vectors), num_pages)

    @property
    def _cache(self) -> Path:
        return cache_directory(self._options.model.cache_dir)

    @property
    def _kv(self) -> KVStorage:
        return KVStorage(spec=self.kv_spec, dtype=self.kv_dtype)

    @property
    def _limits(self) -> Limits:
        schedule = self._options.schedule
        return Limits(max_num_batched_tokens=schedule.max_num_batched_tokens, max_logit_rows=schedule.max_num_seqs)

    def _check_activation_group(self) -> None:
        """Refuse groups of 64 where no weights could be multiplied so."""
        known = set(self.formats.values())
        if self.activation_group == WIDE_GROUP and not any(scale_span(each) >= WIDE_GROUP for each in known):
            raise ConfigError(
                f"activation_group is 64, but no weights of {self._model.name} have a scale for 64 values or "
                f"more: they are {', '.join(sorted(known))}; set weights to int8, or leave activation_group out"
            )

    def _kv_dtype(self) -> Literal["f32", "bf16", "i8"]:
        asked = self._options.cache.kv_cache_dtype
        if asked == "auto":
            return "f32" if set(self.formats.values()) <= {"f32"} else "bf16"
        return "i8" if asked == "int8" else asked

    def _codes(self, weight: Weight, start: int, end: int) -> Codes:
        (part,) = weight.parts
        return self.parameters[part.parameter or ""].codes(weight.format, start, end)

    def _vector(self, weight: Weight) -> NDArray[np.float32]:
        pieces = [
            np.zeros(part.rows, np.float32) if part.parameter is None else self.parameters[part.parameter].float32()
            for part in weight.parts
        ]
        return np.ascontiguousarray(np.concatenate(pieces), np.float32)


def _spec(weight: Weight) -> PackedSpec:
    num_cols, depth = weight.shape
    return PackedSpec(name=weight.name, format=weight.format, num_cols=num_cols, depth=depth)
