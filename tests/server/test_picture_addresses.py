"""Tests of addresses that are, and are not, fetched."""

import ipaddress

import pytest

from tasuki.server.config import ServerConfig
from tasuki.server.errors import PictureNotFetched
from tasuki.server.pictures.fetching.addresses import (
    FetchHosts,
    RefusedAddress,
    check_global,
    is_global,
    read_address,
)
from tasuki.server.pictures.fetching.request_addresses import PicturesWanted, RequestAddresses
from tasuki.server.pictures.part_reader import PictureReader, pictures_read
from tasuki.server.pictures.sent_picture import PictureLimits

HOSTS = FetchHosts.of(["example.com", "Img.Example.org"])


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a.png",
        "https://EXAMPLE.com:443/a.png?b=c",
        "HTTPS://a.b.example.com/",
        "https://img.example.org/a%20b.png#part",
    ],
)
def test_listed_hosts_and_those_below_are_fetched(url: str) -> None:
    assert read_address(url, HOSTS).scheme == "https"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://example.com/a.png", "not https on port 443"),
        ("https://example.com:8443/", "not https on port 443"),
        ("https://example.com:0/", "not https on port 443"),
        ("https:///a.png", "https"),
        ("https://example.com:99999999/", "no URL|not https"),
        ("https://notexample.com/", "of host 'notexample.com'"),
        ("https://example.com.evil.test/", "of host"),
        ("https://example.org/", "of host"),
        ("https://user@example.com/", "a user or a password"),
        ("https://example.com@evil.test/", "user or a password|of host"),
        ("https://evil.test\\@example.com/", "characters"),
        ("https://evil.test/\r\nHost: example.com", "characters"),
        ("https://example.com/a b", "characters"),
        ("https://example.com\u3002evil.test/", "characters"),
        ("https://127.0.0.1/", "of host"),
        ("https://[::1]/", "of host"),
        ("https://2130706433/", "of host"),
        ("https://0x7f.1/", "of host"),
        ("https://example.com./", "of host"),
        ("https://example.com/" + "a" * 5000, "4096"),
    ],
)
def test_other_addresses_are_refused(url: str, complaint: str) -> None:
    with pytest.raises(RefusedAddress, match=complaint):
        read_address(url, HOSTS)


LOCAL = (
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1"),
    *("169.254.169.254", "192.0.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::7f00:1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "64:ff9b:1::808:808"),
    *(
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2001:0:7f00:1::",
        "2001:0:4136:e378:8000:63bf:80ff:fffe",
    ),
)
PUBLIC = ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822")


@pytest.mark.parametrize("address", LOCAL)
def test_no_address_of_this_network_is_global(address: str) -> None:
    assert not is_global(ipaddress.ip_address(address))
    with pytest.raises(RefusedAddress, match="public internet"):
        check_global("a.test", [PUBLIC[0], address])


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet_are_global(address: str) -> None:
    check_global("a.test", [address])


def test_a_scope_is_refused() -> None:
    with pytest.raises(RefusedAddress):
        check_global("a.test", ["2606:2800:220:1:248:1893:25c8:1946%eth0"])


@pytest.mark.parametrize(
    "names", ["https://a.test", "a.test:443", "127.0.0.1", "*", "*.a.test", "a..b", "[::1]", "a/b"]
)
def test_a_setting_of_other_things_is_refused_at_the_start(names: str) -> None:
    with pytest.raises(ValueError, match="fetch_pictures has"):
        ServerConfig(fetch_pictures=names)
    assert ServerConfig(fetch_pictures="a.test, b.test").fetch_hosts.names == ("a.test", "b.test")


def test_a_first_reading_notes_addresses_and_a_second_has_their_contents() -> None:
    url = "https://example.com/a.png"
    part = {"image_url": {"url": url}}
    addresses = RequestAddresses(HOSTS)
    reader = PictureReader(PictureLimits(), addresses=addresses)
    reader.chat_part(part, "a")
    reader.message_block({"source": {"type": "url", "url": url + "?2"}}, "b")
    with pytest.raises(PicturesWanted) as wanted:
        pictures_read(reader)
    assert wanted.value.places == {url: "a.image_url.url", f"{url}?2": "b.source.url"}
    again = PictureReader(PictureLimits(), addresses=RequestAddresses(HOSTS, {url: b"content"}))
    again.chat_part(part, "a")
    (picture,) = pictures_read(again)
    assert picture.content == b"content"


def test_addresses_are_refused_by_their_place() -> None:
    reader = PictureReader(PictureLimits(), addresses=RequestAddresses(HOSTS))
    with pytest.raises(PictureNotFetched, match=r"a.image_url.url is of host 'evil.test'"):
        reader.chat_part({"image_url": {"url": "https://evil.test/"}}, "a")
    with pytest.raises(PictureNotFetched, match="--fetch-pictures"):
        PictureReader(PictureLimits()).chat_part({"image_url": "https://example.com/a"}, "a")
