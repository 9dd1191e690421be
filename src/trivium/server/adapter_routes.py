"""Loading and unloading of adapters while serving, in vLLM's shapes.

Only folders below `--lora-root` are read, whatever a path says, links included; without the option both routes are off.
Answers of success are lines of text, as vLLM's are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from trivium.base.errors import InvalidParameterError
from trivium.server.body import read_json_object
from trivium.server.errors import AdapterNotFoundError, ForbiddenError
from trivium.server.service import Service
from trivium.server.tables import LOAD_ADAPTER, UNLOAD_ADAPTER
from trivium.weights.peft import FILES

MAX_SHOWN_CHARS = 200


class AdapterRoutes:
    """Endpoint functions over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._roots = tuple(Path(root).resolve() for root in service.options.lora_root)

    async def load(self, request: Request) -> Response:
        """Load an adapter from a folder below a root; requests may name it when this answers.

        Raises:
            InvalidParameterError: A field is missing, the name is taken, or the path leads out of every root.
            AdapterNotFoundError: There is no such folder.
            AdapterError: The adapter cannot be read, or does not fit the model.
            ForbiddenError: Loading while serving is off.
        """
        values = LOAD_ADAPTER.read(await self._body(request))
        name, asked = _required(values, "lora_name"), _required(values, "lora_path")
        folder = find_folder(asked, self._roots)
        adapters = self._service.engine.adapters
        await adapters.load(
            name, str(folder), taken=self._service.served.names, in_place=values.get("load_inplace", False)
        )
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        """Let a name mean nothing; requests that began with the adapter go on.

        Raises:
            InvalidParameterError: lora_name is missing.
            ModelNotFoundError: No adapter has that name.
            ForbiddenError: Loading while serving is off.
        """
        name = _required(UNLOAD_ADAPTER.read(await self._body(request)), "lora_name")
        await self._service.engine.adapters.unload(name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    async def _body(self, request: Request) -> Mapping[str, Any]:
        if not self._roots:
            raise ForbiddenError("adapters are not loaded while serving; start the server with --lora-root DIR")
        self._service.check_ready()
        return await read_json_object(request.scope, request.receive, max_bytes=self._service.options.max_body_bytes)


def find_folder(asked: str, roots: Sequence[Path]) -> Path:
    """Return the folder that a path means, links followed.

    Args:
        asked: Absolute, or relative to a root.
        roots: Resolved folders; nothing outside of them is looked at.

    Raises:
        InvalidParameterError: It leads out of every root, or a file in it does.
        AdapterNotFoundError: There is nothing of the kind.
    """
    shown = asked[:MAX_SHOWN_CHARS]
    if "\0" in asked:
        raise InvalidParameterError("lora_path has a null character in it", param="lora_path")
    inside = []
    for root in roots:
        try:
            folder = (root / asked).resolve()
        except (OSError, RuntimeError) as error:
            raise InvalidParameterError(f"lora_path '{shown}' cannot be followed: {error}", param="lora_path") from None
        if folder.is_relative_to(root):
            inside.append(folder)
    if not inside:
        raise InvalidParameterError(
            f"lora_path '{shown}' leads out of the folders that --lora-root names", param="lora_path"
        )
    found = [one for one in inside if one.is_dir()]
    if not found:
        raise AdapterNotFoundError(f"No adapter found for '{shown}'", param="lora_path")
    for name in FILES:
        if not any((found[0] / name).resolve().is_relative_to(root) for root in roots):
            raise InvalidParameterError(
                f"lora_path '{shown}': {name} is a link that leads out of the folders that --lora-root names",
                param="lora_path",
            )
    return found[0]


def _required(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        raise InvalidParameterError(f"{name} is missing; it must be a text", param=name)
    return str(values[name])
