"""From which hosts and addresses images are fetched: an injected name server and connector show what is asked and reached."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.support.web import (
    BODY,
    FIELD,
    OTHER_PUBLIC,
    PUBLIC,
    Connector,
    MakeFetcher,
    Names,
    Site,
    redirect,
    refusal,
)
from ts_stateful.protocol.errors import MediaForbidden, MediaInvalid


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "a.localhost",
        "127.1",
        "0",
        "0.0.0.0",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "[::]",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "user@127.0.0.1",
        "example.com@127.0.0.1",
        "127.0.0.1\\@example.com",
        "\uff11\uff12\uff17.0.0.1",
        "127。0。0。1",
        "ⓛocalhost",
        "%6cocalhost",
    ],
)
def test_no_connection_is_made_to_this_machine(make_fetcher: MakeFetcher, host: str) -> None:
    """However this machine is named, the URL is forbidden and nothing connects to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        refusal(make_fetcher(private=False), f"http://{host}:{port}/", MediaForbidden)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "168.63.129.16",
        "192.168.0.1",
        "224.0.0.1",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "metadata.google.internal",
        "printer.local",
    ],
)
def test_no_connection_is_made_to_private_networks(make_fetcher: MakeFetcher, host: str) -> None:
    """Private and metadata addresses are forbidden; local names are not even looked up."""
    connector, names = Connector(), Names([PUBLIC])
    fetcher = make_fetcher(private=False, seams={"backend": connector, "resolver": names})
    refusal(fetcher, f"http://{host}/", MediaForbidden)
    assert (connector.connected, names.asked) == ([], [])


def test_the_checked_address_is_connected_to(site: Site, make_fetcher: MakeFetcher) -> None:
    """A public name is looked up once; its address is connected to and its name is the Host."""
    connector, names = Connector(site), Names([PUBLIC], ["127.0.0.1"])
    fetcher = make_fetcher(private=False, seams={"backend": connector, "resolver": names})
    assert fetcher.fetch("http://images.example.com:8080/", FIELD) == BODY
    assert connector.connected == [(PUBLIC, 8080)]
    assert names.asked == ["images.example.com"]
    assert site.requests[0][1]["Host"] == "images.example.com:8080"


def test_a_name_that_changes_to_a_private_address_is_forbidden(
    site: Site, make_fetcher: MakeFetcher
) -> None:
    """A name that is public first and private next is forbidden when a redirect asks again."""
    connector, names = Connector(site), Names([PUBLIC], ["127.0.0.1"])
    fetcher = make_fetcher(private=False, seams={"backend": connector, "resolver": names})
    site.routes["/a"] = redirect("/")
    refusal(fetcher, "http://images.example.com/a", MediaForbidden)
    assert connector.connected == [(PUBLIC, 80)]
    assert site.paths == ["/a"]


@pytest.mark.parametrize("mixed", [["10.0.0.1", PUBLIC], [PUBLIC, OTHER_PUBLIC, "::1"]])
def test_mixed_records_are_forbidden(make_fetcher: MakeFetcher, mixed: list[str]) -> None:
    """One private address among public ones forbids the whole name, without naming the address."""
    connector = Connector()
    fetcher = make_fetcher(private=False, seams={"backend": connector, "resolver": Names(mixed)})
    message = refusal(fetcher, "http://images.example.com/", MediaForbidden)
    assert connector.connected == []
    assert not any(address in message for address in mixed)


def test_private_addresses_can_be_allowed(site: Site, make_fetcher: MakeFetcher) -> None:
    """With private addresses allowed a name of the intranet is fetched, with its name as Host."""
    fetcher = make_fetcher(seams={"resolver": Names(["127.0.0.1"])})
    url = f"http://images.internal:{site.server_port}/"
    assert fetcher.fetch(url, FIELD) == BODY
    assert site.requests[0][1]["Host"] == f"images.internal:{site.server_port}"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("example.com", True),
        ("EXAMPLE.com", True),
        ("a.cdn.example.com", True),
        ("a.b.cdn.example.com", True),
        ("[::1]", True),
        ("cdn.example.com", False),
        ("a.example.com", False),
        ("badcdn.example.com", False),
        ("example.com.evil.com", False),
        ("127.0.0.1", False),
        ("[::2]", False),
    ],
)
def test_only_allowed_hosts_are_fetched_from(
    site: Site, make_fetcher: MakeFetcher, host: str, allowed: bool
) -> None:
    """A list of hosts allows exactly those, and with `*.` the names below a domain."""
    connector = Connector(site)
    seams = {"backend": connector, "resolver": Names([PUBLIC])}
    fetcher = make_fetcher(allowed_hosts=("Example.com", "*.cdn.example.com", "[::1]"), seams=seams)
    if allowed:
        assert fetcher.fetch(f"http://{host}/", FIELD) == BODY
    else:
        refusal(fetcher, f"http://{host}/", MediaForbidden)
        assert connector.connected == []


def test_an_allowed_host_must_still_be_public(make_fetcher: MakeFetcher) -> None:
    """To be on the list does not help a name whose address is private."""
    seams = {"backend": Connector(), "resolver": Names(["10.0.0.1"])}
    fetcher = make_fetcher(private=False, allowed_hosts=("example.com",), seams=seams)
    refusal(fetcher, "http://example.com/", MediaForbidden)


@pytest.mark.parametrize("failure", [socket.gaierror("secret"), OSError("secret"), None])
def test_an_unknown_name_is_invalid(make_fetcher: MakeFetcher, failure: OSError | None) -> None:
    """A name that does not resolve, or to nothing, is invalid."""

    def fail() -> None:
        if failure is not None:
            raise failure

    names = Names([], before=fail)
    message = refusal(make_fetcher(seams={"resolver": names}), "http://example.com/", MediaInvalid)
    assert message == "the URL's host cannot be resolved"


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"allowed_schemes": ("https",)}, "https://example.com:8443/"),
        ({"allowed_schemes": ("https",)}, "https://example.com:80/"),
        ({"allowed_schemes": ("https",)}, "https://[2606:4700::1111]:22/"),
        ({}, "http://example.com:8080/"),
        ({"allowed_ports": (8443,)}, "https://example.com/"),
    ],
)
def test_no_connection_is_made_to_another_port(
    make_fetcher: MakeFetcher, settings: dict[str, Any], url: str
) -> None:
    """Without a setting those of the allowed schemes are the only ones; the name is not even looked up."""
    connector, names = Connector(), Names([PUBLIC])
    seams = {"backend": connector, "resolver": names}
    fetcher = make_fetcher(private=False, seams=seams, **{"allowed_ports": (), **settings})
    assert "handler.media.allowedPorts" in refusal(fetcher, url, MediaForbidden)
    assert (connector.connected, names.asked) == ([], [])


def test_a_redirect_to_another_port_is_forbidden(site: Site, make_fetcher: MakeFetcher) -> None:
    """As the client's own URL would be."""
    connector, names = Connector(site), Names([PUBLIC])
    seams = {"backend": connector, "resolver": names}
    fetcher = make_fetcher(private=False, seams=seams, allowed_ports=())
    site.routes["/a"] = redirect("http://example.com:6379/")
    refusal(fetcher, "http://example.com/a", MediaForbidden)
    assert connector.connected == [(PUBLIC, 80)]


def test_a_port_can_be_allowed(site: Site, make_fetcher: MakeFetcher) -> None:
    """It is then as good as the usual one."""
    connector, names = Connector(site), Names([PUBLIC])
    seams = {"backend": connector, "resolver": names}
    fetcher = make_fetcher(private=False, seams=seams, allowed_ports=(80, 8080))
    assert fetcher.fetch("http://example.com:8080/", FIELD) == BODY
    assert fetcher.fetch("http://example.com/", FIELD) == BODY
