"""API keys: who may call what.

Without API keys the API is open; with them every path but the open list wants one, also paths that do not exist, so
that no spelling of a route slips through. Admin routes want an admin key and are off without any. Keys are compared as
SHA-256 digests, all of them every time, so that neither length nor prefix can be timed; only names reach the log.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from trivium.base.errors import AuthenticationError, ConfigError
from trivium.config.options import ServerOptions
from trivium.server.errors import ForbiddenError

OPEN_PATHS = frozenset({"/health", "/health_generate", "/live"})
"""The only paths that answer without a key, spelled exactly so."""
MIN_KEY_LEN = 8
"""Fewest characters of a key."""
ADMIN_PATHS = frozenset({
    "/v1/cache",
    "/v1/cache/check",
    "/v1/cache/events",
    "/v1/cache/flush",
    "/v1/cache/pin",
    "/v1/cache/unpin",
    "/v1/config/reload",
    "/v1/requests",
})
GUARDED_PATHS = frozenset({"/flush_cache", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""Paths that want an admin key where there is any, else what generating wants: programs of other servers call them."""
OWNED_PREFIXES = ("/v1/requests/", "/v1/programs/")
"""Paths below them take an API key, for what is its own, or an admin key, for what is anybody's."""


_OFF = "admin routes are off; start the server with --admin-key NAME=KEY"


class KeyRing:
    """Named keys, held as digests."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Take keys as NAME=KEY or KEY.

        Raises:
            ConfigError: A key has a space or control character, which no header can carry; is so short that it can be
                guessed, and blanking it would garble the log; or is there twice, so that it had two names. Or an entry
                could be read in two ways: `abc==` may be a key in base64, and must not make `=` the key of `abc`.
        """
        self._names: dict[bytes, str] = {}
        for idx, entry in enumerate(keys):
            name, separator, key = entry.partition("=")
            if not separator:
                name, key = f"key{idx}", entry
            if not key.strip("="):
                raise ConfigError(f"API key number {idx + 1} has nothing behind its '='; write NAME=KEY")
            if any(character.isspace() or not character.isprintable() for character in key):
                raise ConfigError(f"API key number {idx + 1} has a space or a control character in it")
            if len(key) < MIN_KEY_LEN:
                raise ConfigError(f"API key '{name}' has fewer than {MIN_KEY_LEN} characters; make it longer")
            digest = _digest(key.encode())
            if (other := self._names.get(digest)) is not None:
                raise ConfigError(f"API keys '{other}' and '{name}' are the same key; give each caller its own")
            self._names[digest] = name

    def __bool__(self) -> bool:
        return bool(self._names)

    def name_of(self, key: bytes) -> str | None:
        """Return the name under which `key` is known, or `None`; takes the same time for every key."""
        given = _digest(key)
        found: str | None = None
        for digest, name in self._names.items():
            if hmac.compare_digest(digest, given):
                found = name
        return found


class Doorkeeper:
    """Decides for a path and its headers who is calling."""

    def __init__(self, options: ServerOptions) -> None:
        entries = (*options.api_key, *(_read_key_file(options.api_key_file) if options.api_key_file else ()))
        self._callers = KeyRing(entries)
        self._admins = KeyRing(options.admin_key)

    def identify(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the caller's key name, or `None` where none is needed.

        Raises:
            AuthenticationError: A key is needed, and there is none or a wrong one.
            ForbiddenError: The route is for admins and switched off.
        """
        if path in OPEN_PATHS:
            return None
        if path.startswith(OWNED_PREFIXES) and self.is_admin(headers):
            return _known(self._admins, headers)
        is_admin_path = path in ADMIN_PATHS
        if (is_admin_path or path in GUARDED_PATHS) and self._admins:
            return _known(self._admins, headers)
        caller = _known(self._callers, headers) if self._callers else None
        if is_admin_path:
            raise ForbiddenError(_OFF)
        return caller

    def require_admin(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Refuse who brings no admin key.

        Raises:
            AuthenticationError: There is none, or a wrong one.
            ForbiddenError: Admin routes are switched off.
        """
        if not self._admins:
            raise ForbiddenError(_OFF)
        _known(self._admins, headers)

    def is_admin(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether the headers bring an admin key."""
        try:
            return bool(self._admins) and _known(self._admins, headers) is not None
        except AuthenticationError:
            return False


def _known(ring: KeyRing, headers: Iterable[tuple[bytes, bytes]]) -> str:
    given = [value for name, value in headers if name == b"authorization"]
    if not given:
        raise AuthenticationError("You didn't provide an API key; send it as 'Authorization: Bearer KEY'")
    scheme, _, key = given[0].partition(b" ")
    name = ring.name_of(key.strip())
    if len(given) != 1 or scheme.lower() != b"bearer" or name is None:
        raise AuthenticationError("Incorrect API key provided")
    return name


def _read_key_file(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the API key file {path}: {type(error).__name__}") from error
    entries = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not entries:
        # An empty list would open the API to everyone, which is never what a key file is for.
        raise ConfigError(f"the API key file {path} holds no keys")
    return entries


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
