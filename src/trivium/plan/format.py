"""The plan file: a directory with one `plan.json`, for people to read and to compare, and for programs to trust.

::

    {
     "format": "trivium plan",
     "version": 1,
     "checksum": "…",              blake2b over the canonical JSON of all else
     "origin": {"model": …},       said to people, never compared
     "key": {…},                   what the plan fits, one fact a line (`plan.key`)
     "plan": {
      "limits": …,
      "weights": [ one a line ],
      "buffers": [ one a line ],
      "programs": {"base": {"outputs": …, "instructions": [ one a line ]}, …}
     }
    }

Equal plans are equal files. What is read is checked as if it came from a stranger: a plan's offsets are addresses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

from trivium.base.errors import PlanError, PlanFormatError
from trivium.base.files import write_atomically
from trivium.plan.check import check_plan
from trivium.plan.key import PlanKey
from trivium.plan.program import PLAN_VERSION, Plan

FILE_NAME = "plan.json"
_FORMAT = "trivium plan"
_OPENED = frozenset({
    "key",
    "facts",
    "plan",
    "ropes",
    "weights",
    "buffers",
    "programs",
    "base",
    "adapters",
    "instructions",
})
"""Names whose content is written one entry a line; everything else stays on the line of its own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a plan comes from, for those who list and explain plans."""

    model: str
    """What it was compiled for, as `trivium compile` takes it: a name, or an absolute path."""
    processor: str
    """Where it was compiled and, if it was tuned, timed."""
    trivium: str
    """Version of the package."""

    @property
    def name(self) -> str:
        """The model's short name: of a path the last part, without its .gguf."""
        path = Path(self.model)
        return path.name.removesuffix(".gguf") if path.is_absolute() else self.model


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """A plan with what it fits and where it comes from: everything that is in the file."""

    plan: Plan
    key: PlanKey
    origin: Origin


def plan_file(directory: Path) -> Path:
    """Return the file in which a plan's directory keeps it."""
    return directory / FILE_NAME


def write_plan(stored: StoredPlan, directory: Path) -> Path:
    """Write a plan, whole or not at all; replaces the one that was there.

    Returns:
        The file.

    Raises:
        PlanError: The directory cannot be written.
    """
    path = plan_file(directory)
    try:
        write_atomically(path, to_text(stored).encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise PlanError(
            f"the plan cannot be written to {path}: {reason}; free space, or name another directory"
        ) from error
    return path


def read_plan(directory: Path) -> StoredPlan:
    """Read and check a plan.

    Raises:
        PlanError: There is none, or it cannot be opened.
        PlanFormatError: It is damaged, was edited, is of another version, or says what no plan may say.
    """
    path = plan_file(directory)
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise PlanError(f"there is no plan in {directory} ({path} is missing); {_compile(directory)}") from error
    except OSError as error:
        raise PlanError(f"the plan {path} cannot be read: {error.strerror or error}") from error
    return from_text(text, path)


def read_key(directory: Path) -> PlanKey | None:
    """Return what a directory's plan says that it fits, unchecked and in a tenth of the time; for messages."""
    try:
        document = json.loads(plan_file(directory).read_bytes())
        return msgspec.convert(document["key"], PlanKey)
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None


def to_text(stored: StoredPlan) -> str:
    """Write a plan as text, ending in a newline."""
    document = _document(stored)
    return _opened({**document, "checksum": _checksum(document)}, "", order=_ORDER) + "\n"


def from_text(text: bytes, path: Path) -> StoredPlan:
    """Read what `to_text` wrote.

    Args:
        text: The file's content.
        path: Where it was found, for messages.

    Raises:
        PlanFormatError: As `read_plan`.
    """
    document = _parse(text, path)
    body = {name: value for name, value in document.items() if name not in {"format", "version", "checksum"}}
    try:
        stored = msgspec.convert(body, StoredPlan)
    except msgspec.ValidationError as error:
        raise _refused(path, f"it is malformed: {error}") from error
    if _plain(stored) != body:
        raise _refused(path, "it has fields that no plan has")
    try:
        check_plan(stored.plan)
    except PlanFormatError as error:
        raise _refused(path, str(error)) from error
    return stored


_ORDER = ("format", "version", "checksum")


def _document(stored: StoredPlan) -> dict[str, Any]:
    plain = _plain(stored)
    return {"format": _FORMAT, "version": stored.plan.version} | {
        name: plain[name] for name in ("origin", "key", "plan")
    }


def _checksum(document: Mapping[str, Any]) -> str:
    unsigned = {name: value for name, value in document.items() if name != "checksum"}
    canonical = json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    """Read the outer object, and settle whether the rest is worth looking at."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"it is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise _refused(path, "it is not a plan of Trivium")
    if document.get("version") != PLAN_VERSION:
        raise _refused(path, f"it is of version {document.get('version')!r}, and this is version {PLAN_VERSION}")
    if document.get("checksum") != _checksum(document):
        raise _refused(path, "its checksum is wrong: it is damaged, or was edited")
    return document


def _refused(path: Path, reason: str) -> PlanFormatError:
    return PlanFormatError(f"the plan {path} cannot be used: {reason}; {_compile(path.parent)}")


def _compile(directory: Path) -> str:
    return f"make it with: trivium compile MODEL -o {directory}"


def _plain(value: Any) -> Any:
    """Turn records into what JSON has; fields that are empty by default and empty are left out."""
    if is_dataclass(value):
        pairs = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: _plain(found) for field, found in pairs if not _is_left_out(field, found)}
    if isinstance(value, Mapping):
        return {name: _plain(found) for name, found in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(found) for found in value]
    return value


def _is_left_out(field: Any, found: Any) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return default is not MISSING and not isinstance(found, (int, float, str)) and not found and found == default


def _opened(value: Any, indent: str, *, order: tuple[str, ...] = ()) -> str:
    """Write an object or a list with one entry a line, opening those that `_OPENED` names."""
    inner = indent + " "
    if isinstance(value, dict):
        names = [*order, *(name for name in value if name not in order)]
        lines = [f"{inner}{json.dumps(name)}: {_line(name, value[name], inner)}" for name in names]
    else:
        lines = [inner + _closed(entry) for entry in value]
    start, end = "{}" if isinstance(value, dict) else "[]"
    return f"{start}\n" + ",\n".join(lines) + f"\n{indent}{end}" if lines else start + end


def _line(name: str, value: Any, indent: str) -> str:
    return _opened(value, indent) if name in _OPENED else _closed(value)


def _closed(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
