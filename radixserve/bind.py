"""Who may reach the server: without tenants only this machine, unless it is asked for by name."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from radixserve.config import ConfigError

if TYPE_CHECKING:
    from radixserve.config import ServeConfig


def check_exposure(config: ServeConfig) -> None:
    """Raise `ConfigError` for a server without tenants that other machines could reach."""
    if config.tenants or config.allow_anonymous or is_loopback(config.host):
        return
    raise ConfigError(
        f"without tenants anyone who reaches {config.host or 'this machine'} could use the engine. Give keys out with "
        "`radixserve tenant add NAME` and serve with --tenants tenants.toml, stay on --host 127.0.0.1, or let everyone in with "
        "--allow-anonymous"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`, an address or a name. A name that is not known counts as reachable."""
    if not host:
        return False  # every address of this machine
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    return bool(addresses) and all(_plain(address).is_loopback for address in addresses)


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
