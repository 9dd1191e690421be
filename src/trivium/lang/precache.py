"""What a program's runs begin with, and what they will compile, done once before them.

::

    trace ─► static prefix ─► its tokens ─ prefill ─► prefix cache ─ pin ─► runs ─► unpin
          └► constraints ───► compiler (its own thread), while the prefix is computed
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from trivium.base.errors import TriviumError
from trivium.config.sampling import SamplingParams
from trivium.lang import expressions as exprs
from trivium.lang.backends.remote import RemoteBackend
from trivium.lang.driver import driver
from trivium.lang.forms import DTYPES, form_of
from trivium.lang.program import Program as Run
from trivium.lang.sampling import Sampling
from trivium.lang.strand import Strand
from trivium.program.foresight import constraints, ends_open, static_prefix
from trivium.program.nodes import Body, Role, Say

if TYPE_CHECKING:
    from trivium.config.structured import StructuredOutputs
    from trivium.lang.effects import Effects
    from trivium.program.nodes import Program

logger = logging.getLogger(__name__)

MIN_LETTERS = 64
"""Shortest static prefix that is worth a request of its own, in characters; SGLang's number."""


@contextmanager
def prepared(trace: Callable[[], Program], backend: Any, effects: Effects) -> Iterator[None]:
    """Have a backend ready for many runs of a program, as far as its trace goes; what fails is left to the runs.

    Args:
        trace: Returns the program, or its beginning; called if there is something to do with it.
        backend: What it will run on.
        effects: What is wanted.
    """
    with ExitStack() as stack:
        if not isinstance(backend, RemoteBackend) and (
            effects.enable_precache_with_tracing or effects.enable_compile_ahead
        ):
            try:
                program = trace()
                if effects.enable_compile_ahead:
                    compile_ahead(program, backend)
                if effects.enable_precache_with_tracing:
                    stack.callback(hold(prefix_ids(program.body, backend), backend))
            except TriviumError as error:
                logger.debug("a batch goes on without preparation: %s", error)
        yield


def prefix_ids(body: Body, backend: Any) -> list[int]:
    """Return the tokens with which every run of a program begins; none where they are too few to matter.

    Raises:
        ProgramError: The chat template refuses the messages.
    """
    prefix = static_prefix(body)
    run = Run(backend=backend, defaults=Sampling())
    strand = Strand(run)
    try:
        _append(strand, prefix, is_open=ends_open(body, prefix))
        text, ids = strand.ask(lambda own: (own.transcript.text, own.transcript.prompt_ids())).result()
    finally:
        run.end()
    return list(ids) if len(text) >= MIN_LETTERS else []


def compile_ahead(program: Program, backend: Any) -> None:
    """Have the constraints compiled that a program is known to use."""
    if hasattr(backend, "compile_ahead"):
        for kind, value in constraints(program):
            backend.compile_ahead(constraint_of(kind, value))


def constraint_of(kind: str, value: Any) -> StructuredOutputs:
    """Return the constraint of a form: an argument of `gen`, and its value.

    Raises:
        InvalidParameterError: It has a bad value.
    """
    types: dict[str, Any] = {each.__name__: each for each in DTYPES if isinstance(each, type)}
    form: Any = form_of(**{kind: types.get(value, value) if kind == "dtype" else value})
    found: StructuredOutputs = form.constraint
    return found


def hold(ids: list[int], backend: Any) -> Callable[[], None]:
    """Compute a prefix and keep it cached; return what lets it go.

    Raises:
        RequestError: The backend refuses it.
    """
    if not ids:
        return lambda: None
    driver.submit(_prefill(ids, backend)).result()
    if not hasattr(backend, "pin"):
        return lambda: None
    pin_id = f"program-{uuid.uuid4().hex}"
    backend.pin(pin_id, ids)

    def release() -> None:
        with suppress(TriviumError):  # of a model that was closed meanwhile
            backend.unpin(pin_id)

    return release


async def _prefill(ids: list[int], backend: Any) -> None:
    news: AsyncIterator[Any] = backend.submit(ids, SamplingParams(max_tokens=0, temperature=0.0, seed=0))
    async for _ in news:
        pass


def _append(strand: Strand, body: Body, *, is_open: bool = False) -> None:
    for idx, node in enumerate(body):
        if isinstance(node, Say):
            strand.append(exprs.Constant(text=node.text))
        elif isinstance(node, Role):
            strand.append(exprs.RoleBegin(role=node.role))
            _append(strand, node.body)
            if not (is_open and idx == len(body) - 1):
                strand.append(exprs.RoleEnd(role=node.role))
