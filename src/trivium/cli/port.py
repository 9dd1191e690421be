"""Whether a port can be listened on."""

from __future__ import annotations

import errno
import socket

from trivium.base.errors import ConfigError, TriviumError


class PortInUseError(TriviumError):
    """Another program listens on the port already."""


def check_port(host: str, port: int) -> None:
    """Bind to an address for a moment, the way a server does.

    Args:
        host: Name or address.
        port: 0 means any free one.

    Raises:
        PortInUseError: It is taken; names the port.
        ConfigError: The host is no address of this machine, or the port may not be used.
    """
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"host is '{host}', which is not an address here: {error.strerror}") from error
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            # On Linux a second bind with SO_REUSEADDR succeeds unless the first one listens; listening tells for sure.
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(f"port {port} on {host} is in use; choose another with --port") from error
            raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from error
