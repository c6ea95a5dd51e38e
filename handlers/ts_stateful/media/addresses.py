"""The network addresses and host names of the public internet: a client's URL must not reach the server's own network.

The refused networks are those of IANA's special-purpose address registries, and the public addresses at which clouds serve
metadata. They are spelled out because `ipaddress.is_global` differs between Python's patch releases.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

__all__ = ["is_local_name", "is_public_address"]

_REFUSED_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this host
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carrier-grade NAT; one cloud's metadata is in it
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # a public address by number, Azure's host agent in fact
            "169.254.0.0/16",  # link-local; most clouds' metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments; one cloud's metadata
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # multicast tunnels
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
        ),
    )
)

# Unicast that is routed at all. Outside of it lie loopback, unspecified, link-local, site-local,
# unique local, multicast and every way of writing an IPv4 address in the low bits of the zero
# prefix (mapped, compatible, translated).
_GLOBAL_V6 = IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments: Teredo (which embeds IPv4), ORCHID, benchmarks
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: embeds IPv4; images are not served from it
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)
# RFC 6052: with DNS64 every IPv4-only public host resolves to this prefix. The address inside
# decides.
_NAT64 = IPv6Network("64:ff9b::/96")

# Names that mean the machine, its network or its cloud by convention. Their addresses are refused in
# any case; refusing the names too spares the query, and holds if a resolver lies.
_LOCAL_SUFFIXES = ("localhost", "localdomain", "local", "internal", "home.arpa")
_LOCAL_NAMES = frozenset({"metadata", "instance-data"})


def is_public_address(address: str) -> bool:
    """Return True if `address`, an IPv4 or IPv6 address in text, is of a host of the public internet.

    If it embeds an IPv4 address, that one decides (NAT64), or it is refused (6to4, Teredo, mapped and the like). Text that
    is no address is not public.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address):
        if parsed in _NAT64:
            return _is_public_v4(IPv4Address(int(parsed) & 0xFFFF_FFFF))
        return parsed in _GLOBAL_V6 and not any(parsed in network for network in _REFUSED_V6)
    return _is_public_v4(parsed)


def is_local_name(host: str) -> bool:
    """Return True if `host`, a lower-case DNS name, by convention means this machine, network or cloud."""
    return host in _LOCAL_NAMES or any(
        host == suffix or host.endswith("." + suffix) for suffix in _LOCAL_SUFFIXES
    )


def _is_public_v4(address: IPv4Address) -> bool:
    return not any(address in network for network in _REFUSED_V4)
