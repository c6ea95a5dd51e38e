"""Which addresses count as the public internet."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ts_stateful.media.addresses import is_local_name, is_public_address

V4 = st.integers(0, 2**32 - 1).map(IPv4Address)
V6 = st.integers(0, 2**128 - 1).map(IPv6Address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "93.184.216.34", "168.63.129.15", "2606:4700::1111", "64:ff9b::8.8.8.8"],
)
def test_public_addresses_are_allowed(address: str) -> None:
    """An address of the public internet is allowed, also where DNS64 wraps it."""
    assert is_public_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::ffff:0:127.0.0.1",
        "64:ff9b::",
        "64:ff9b::127.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::8.8.8.8",
        "100::1",
        "2001::1",
        "2001:10::1",
        "2001:db8::1",
        "2002:7f00::",
        "2002:808:808::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_special_addresses_are_refused(address: str) -> None:
    """Every special-purpose address is refused: private, local, metadata, embedded, documentation."""
    assert not is_public_address(address)


@pytest.mark.parametrize(
    "text", ["", "localhost", "127.1", "0x7f.1", "1.2.3.04", "[::1]", "1.2.3.4 "]
)
def test_what_is_no_address_is_not_public(text: str) -> None:
    """Text that is not a canonical address is never taken for a public one."""
    assert not is_public_address(text)


@given(st.one_of(V4, V6))
def test_nothing_is_public_that_the_standard_library_calls_special(
    address: IPv4Address | IPv6Address,
) -> None:
    """The table here is at least as strict as `ipaddress`."""
    if is_public_address(str(address)):
        assert ip_address(str(address)).is_global


@given(V4)
def test_embedded_addresses_are_judged_by_what_they_embed(address: IPv4Address) -> None:
    """NAT64 stands for the IPv4 address inside; mapped, 6to4 and Teredo addresses never pass."""
    number = int(address)
    assert is_public_address(str(IPv6Address((0x64FF9B << 96) | number))) == is_public_address(
        str(address)
    )
    for wrapped in (0xFFFF << 32 | number, 0x2002 << 112 | number << 80, 0x20010000 << 96 | number):
        assert not is_public_address(str(IPv6Address(wrapped)))


@settings(max_examples=50)
@given(st.text(max_size=40))
def test_any_text_gets_an_answer(text: str) -> None:
    """No text makes the check itself fail."""
    assert is_public_address(text) in (True, False)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("a.localhost", True),
        ("printer.local", True),
        ("metadata.google.internal", True),
        ("metadata", True),
        ("nas.home.arpa", True),
        ("example.com", False),
        ("notlocalhost", False),
        ("internal.example.com", False),
        ("metadata.example.com", False),
    ],
)
def test_local_names_are_known(host: str, local: bool) -> None:
    """Names that by convention mean this machine, network or cloud are not public."""
    assert is_local_name(host) is local
