"""SIGHUP: the options are read again, and those that are marked as reloadable take their new values.

Flags and variables keep outranking the file, so what can change is the configuration file, the files that options name,
and nothing else. A file that cannot be read, or holds a bad value, changes nothing at all. What changed and cannot be
taken while serving is named in the log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from trivium.base import log
from trivium.base.errors import ConfigError
from trivium.config.options import EngineOptions, ServerOptions
from trivium.config.record import options_of
from trivium.config.resolve import Settings
from trivium.server.auth import Doorkeeper
from trivium.server.service import Service
from trivium.server.shapes import Changes

logger = logging.getLogger(__name__)

ReadAgain = Callable[[], Settings]
"""Resolves the options of the command once more; raises `ConfigError`."""


class ReloadingEngine(Protocol):
    """What of an engine's client can change while it works; `engine.client.EngineClient` fits."""

    def reload(self, values: Mapping[str, object], *, heartbeat_timeout_s: float, max_held: int) -> None:
        """Take new values, for this engine process and those after it; see `EngineLoop.reload`."""
        ...


class Reload:
    """Reads the options again, for one server."""

    def __init__(self, settings: Settings, read_again: ReadAgain, service: Service, engine: ReloadingEngine) -> None:
        """Compare with `settings`, which `service` and `engine` were made from; `service` offers it to admins."""
        self._settings = settings
        self._read_again = read_again
        self._service = service
        self._engine = engine
        self._secrets = set(settings.secrets())
        service.reload = self.take

    def __call__(self) -> None:
        """Read and take, as a signal wants it: whatever comes of it is in the log."""
        with contextlib.suppress(ConfigError):
            self.take()

    def take(self) -> Changes:
        """Read the options and take those that may change.

        Raises:
            ConfigError: They cannot be read, or one has a bad value; all keep their values.
        """
        try:
            found = self._read_again()
            values = {name: self._new_value(found, name) for name in self._settings.by_name}
            server = replace(self._service.options, **{
                option.name: values[option.name] for option in options_of(ServerOptions) if option.is_reloadable
            })  # fmt: skip
            doorkeeper = Doorkeeper(server)  # reads the key file again, whether or not its name changed
        except ConfigError as error:
            logger.error("the options cannot be read again, so all keep their values: %s", error)  # noqa: TRY400
            raise
        changes = self._compare(found)
        self._service.options, self._service.doorkeeper = server, doorkeeper
        self._engine.reload(
            {"max_queue": values["max_queue"], "log_level": values["log_level"]},
            heartbeat_timeout_s=server.heartbeat_timeout_s,
            max_held=values["max_queue"],
        )
        # Keys that were taken back may still come in requests, and are no more for the log than new ones.
        self._secrets.update(found.secrets())
        log.set_up(level=values["log_level"], form=self._settings["log_format"], secrets=self._secrets)
        known = self._settings.by_name
        self._settings = Settings({**known, **{name: found.by_name[name] for name in changes.changed}})
        for name in changes.needs_restart:
            logger.warning("%s changed in the configuration and needs a restart", name)
        logger.info("options read again; changed: %s", ", ".join(changes.changed) or "none")
        return changes

    def _new_value(self, found: Settings, name: str) -> Any:
        setting = self._settings.by_name[name]
        return found[name] if setting.option.is_reloadable else setting.value

    def _compare(self, found: Settings) -> Changes:
        changed = [name for name, old in self._settings.by_name.items() if found[name] != old.value]
        is_reloadable = {name: self._settings.by_name[name].option.is_reloadable for name in changed}
        return Changes(
            changed=[name for name in changed if is_reloadable[name]],
            needs_restart=[name for name in changed if not is_reloadable[name]],
        )


RELOADABLE = tuple(
    option.name for record in (EngineOptions, ServerOptions) for option in options_of(record) if option.is_reloadable
)
"""Names of all options that a reload takes."""
