"""What `explain` and `verify` are given: a directory that holds a plan, or anything that names a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from trivium.base.errors import ConfigError, ModelError
from trivium.cli.terminal import fetching
from trivium.config.options import EngineOptions

if TYPE_CHECKING:
    from trivium.assembly.model import OpenModel
    from trivium.assembly.native import NativeParts
    from trivium.config.resolve import Settings
    from trivium.plan.format import StoredPlan

PlanTarget = Annotated[
    str | None,
    Parameter(
        help="Directory of a plan, or a model as for serve; the default model when not given. With a directory, --model"
        " names the weights, by default those that the plan was compiled for.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Target:
    """A plan in a directory, or a model whose plan the cache finds or makes."""

    options: EngineOptions
    directory: Path | None
    stored: StoredPlan | None
    """What the directory holds."""
    keeps_model: bool
    """Whether --model was given beside a directory."""

    def parts(self) -> tuple[OpenModel, NativeParts]:
        """Open the model, and understand what runs it.

        Raises:
            ModelError: It cannot be found, fetched or understood.
            PlanMismatchError: The directory's plan does not fit it.
            ConfigError: The native executor cannot run here.
        """
        from trivium.assembly.choice import native_obstacle  # noqa: PLC0415  (start-up time)
        from trivium.assembly.model import open_model  # noqa: PLC0415
        from trivium.assembly.native import NativeParts  # noqa: PLC0415
        from trivium.assembly.plan_options import options_of_plan, parts_of_plan  # noqa: PLC0415
        from trivium.kernels.native import set_num_threads  # noqa: PLC0415

        options, is_named = self.options, self.stored is not None and self.directory is not None
        if self.stored is not None and self.directory is not None:
            options = options_of_plan(options, self.stored, self.directory, keeps_model=self.keeps_model)
        obstacle = native_obstacle(options)
        if obstacle is not None:
            raise ConfigError(f"a plan is run by the native executor, which cannot run: {obstacle}")
        if options.executor.threads is not None:
            set_num_threads(options.executor.threads)
        self._resolve(options)
        if is_named and self.stored is not None and self.directory is not None:
            return parts_of_plan(options, self.stored, self.directory, keeps_model=self.keeps_model)
        model = open_model(options)
        return model, NativeParts(options, model)

    def _resolve(self, options: EngineOptions) -> None:
        from trivium.weights.resolve import resolve_model  # noqa: PLC0415  (start-up time)

        try:
            with fetching() as progress:
                resolve_model(options.model, progress=progress)
        except ModelError as error:
            if self.keeps_model:
                raise
            raise ModelError(
                f"{error}. The plan {self.directory} was compiled for it; name weights with --model"
            ) from error


def open_target(target: str | None, settings: Settings) -> Target:
    """Find out what was given.

    Raises:
        PlanError: It is the directory of a plan that cannot be used.
    """
    from dataclasses import replace  # noqa: PLC0415  (start-up time)

    from trivium.plan.format import plan_file, read_plan  # noqa: PLC0415

    options = settings.build(EngineOptions)
    directory = Path(target).expanduser() if target is not None else None
    if directory is not None and plan_file(directory).exists():
        keeps_model = settings.by_name["model"].origin != "default"
        return Target(options, directory, read_plan(directory), keeps_model)
    if target is not None:
        options = replace(options, model=replace(options.model, model=target))
    return Target(options, None, None, keeps_model=True)
