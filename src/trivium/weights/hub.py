"""Models of the Hugging Face hub, through huggingface_hub where that extra is installed.

Only files of the directory layout that is read are downloaded: configuration, tokenizer, safetensors. The library
honours HF_HOME and HF_TOKEN itself. A hub that does not answer costs about ten seconds at most; a copy that is
already in the library's cache is then used, and said so in the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trivium.base import env
from trivium.base.errors import ModelError

logger = logging.getLogger(__name__)

DEADLINE_S = 9.0
"""How long the hub may take to say what is in a model."""
WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model", "LICENSE*", "NOTICE*", "USE_POLICY*")
"""Files at the top of the repository that are downloaded."""


def snapshot(name: str, *, revision: str | None, offline: bool) -> Path:
    """Return the directory of a hub model, downloading what is missing.

    Args:
        name: org/name.
        revision: Branch, tag or commit; the default branch when `None`.
        offline: Whether only the library's cache may be used; HF_HUB_OFFLINE does the same.

    Raises:
        ModelError: The extra is not installed, the hub does not answer, or it has no such model, revision or
            safetensors weights, or wants a token.
    """
    try:
        import huggingface_hub  # noqa: PLC0415  an optional dependency
    except ImportError as error:
        raise ModelError(
            f"'{name}' is a name on the Hugging Face hub, which needs the hf extra: pip install 'trivium[hf]'"
        ) from error
    if offline or env.HF_HUB_OFFLINE.read():
        return _cached(huggingface_hub, name, revision, "downloads are off (offline)")
    try:
        files = _within_deadline(lambda: _file_names(huggingface_hub, name, revision))
    except TimeoutError:
        return _cached(huggingface_hub, name, revision, f"the hub did not answer within {DEADLINE_S:g} s")
    except Exception as error:
        if reason := _refusal(error):
            raise ModelError(f"'{name}' on the Hugging Face hub: {reason}") from error
        return _cached(huggingface_hub, name, revision, f"the hub cannot be reached ({_one_line(error)})")
    _check_files(name, files)
    try:
        directory = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=list(WANTED), ignore_patterns=["*/*"], token=env.HF_TOKEN.read()
        )
    except Exception as error:
        raise ModelError(f"'{name}' cannot be downloaded from the Hugging Face hub: {_one_line(error)}") from error
    return Path(directory)


def _file_names(hub: Any, name: str, revision: str | None) -> list[str]:
    found = hub.HfApi(token=env.HF_TOKEN.read()).model_info(name, revision=revision, timeout=DEADLINE_S)
    return [sibling.rfilename for sibling in found.siblings or []]


def _within_deadline(ask: Callable[[], list[str]]) -> list[str]:
    # In a thread of its own: a name server that does not answer is not bounded by the library's timeout.
    outcome: list[list[str] | Exception] = []

    def run() -> None:
        try:
            outcome.append(ask())
        except Exception as error:  # handed to the caller's thread
            outcome.append(error)

    thread = threading.Thread(target=run, name="hub", daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    if not outcome:
        raise TimeoutError
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def _check_files(name: str, files: list[str]) -> None:
    top = [file for file in files if "/" not in file]
    if any(file.endswith(".safetensors") for file in top) and "config.json" in top:
        return
    if gguf := [file for file in files if file.endswith(".gguf")]:
        raise ModelError(f"'{name}' holds GGUF files only; download one and name it: {', '.join(gguf[:5])}")
    if any(file.endswith((".bin", ".pt", ".pth")) for file in files):
        raise ModelError(f"'{name}' has pickled weights only, which can run code and are never read")
    raise ModelError(f"'{name}' has no config.json with safetensors weights")


def _cached(hub: Any, name: str, revision: str | None, reason: str) -> Path:
    try:
        directory = Path(hub.snapshot_download(name, revision=revision, local_files_only=True))
    except Exception as error:
        raise ModelError(f"'{name}': {reason}, and it is not in the hub's cache") from error
    logger.warning("%s: %s; using the copy in the hub's cache", name, reason)
    return directory


def _refusal(error: Exception) -> str | None:
    reasons = {
        "GatedRepoError": "access is restricted; accept its terms there and set HF_TOKEN",
        "RepositoryNotFoundError": "no such model, or it is private and HF_TOKEN does not open it",
        "RevisionNotFoundError": "no such revision",
    }
    return next((reasons[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in reasons), None)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__
