"""Until when the certificates of a PEM file are valid. Pure, any thread.

OpenSSL, by way of `ssl`, shows no dates of a certificate that nobody checked; so the one field is
read here. REQUIRES of the file: OpenSSL has loaded it.
"""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION = 0xA0
_UTC_TIME = 0x17
_CENTURY_TURNS = 50
"""Years of two digits: those below are of this century (RFC 5280, 4.1.2.5.1)."""


def not_after_dates(pem: str) -> list[float]:
    """Of each certificate, in order: seconds since 1970. Raises ValueError where one is no
    certificate."""
    return [_not_after(ssl.PEM_cert_to_DER_cert(block)) for block in _blocks(pem)]


def _blocks(pem: str) -> Iterator[str]:
    for part in pem.split(_BEGIN)[1:]:
        body, end, _ = part.partition(_END)
        if not end:
            raise ValueError("a certificate has no end")
        yield f"{_BEGIN}{body}{end}\n"


def _not_after(der: bytes) -> float:
    """Certificate ::= SEQUENCE { tbsCertificate, ... }; TBSCertificate ::= SEQUENCE { [0] version
    OPTIONAL, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter }, ... }"""
    certificate = _elements(der)[0][1]
    fields = _elements(_elements(certificate)[0][1])
    if fields[0][0] == _VERSION:
        fields = fields[1:]
    (_, validity) = fields[3]
    kind, text = _elements(validity)[1]
    return _seconds(kind, text.decode("ascii"))


def _seconds(kind: int, text: str) -> float:
    if kind == _UTC_TIME:
        century = "20" if int(text[:2]) < _CENTURY_TURNS else "19"
        text = century + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Tags and contents of DER values that follow each other, the first five at most: what comes
    behind the validity is not looked at."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(der) and len(found) <= 5:
        if at + 2 > len(der):
            raise ValueError("a certificate ends within a field")
        tag, size = der[at], der[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(der[at : at + count], "big")
            at += count
        if at + size > len(der):
            raise ValueError("a certificate ends within a field")
        found.append((tag, der[at : at + size]))
        at += size
    if not found:
        raise ValueError("a certificate has an empty field")
    return found
