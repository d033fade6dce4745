"""Until when certificates are valid, read from their DER, against what the maker's library says."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509

from tasuki.server.daemon.node_watch import NodeFiles
from tasuki.utils.tls import ServerTls, not_after_dates
from tests.harness.certificates import Authority

ENDS = [
    datetime(2027, 3, 1, 12, 30, 59, tzinfo=UTC),
    datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),
    # From here on the date is written with four digits of the year.
    datetime(2050, 1, 1, tzinfo=UTC),
    datetime(2999, 6, 7, 8, 9, 10, tzinfo=UTC),
    datetime(2001, 1, 1, tzinfo=UTC),
]


def issued(end: datetime) -> trustme.LeafCert:
    # trustme's authority is not valid for ever; openssl does not ask it here.
    return trustme.CA().issue_cert("localhost", not_before=end - timedelta(days=9), not_after=end)


@pytest.mark.parametrize("end", ENDS)
def test_the_date_is_the_certificate_s(end: datetime) -> None:
    pem = issued(end).cert_chain_pems[0].bytes()
    known = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    assert not_after_dates(pem.decode()) == [known.timestamp()] == [end.timestamp()]


def test_a_file_may_hold_several_with_words_between() -> None:
    pems = [issued(end).cert_chain_pems[0].bytes().decode() for end in ENDS[:2]]
    found = not_after_dates(f"a chain\n{pems[0]}\nand\n{pems[1]}")
    assert found == [end.timestamp() for end in ENDS[:2]]
    assert not_after_dates("no certificate") == []


def test_what_is_no_certificate_is_an_error_and_never_a_date() -> None:
    whole = issued(ENDS[0]).cert_chain_pems[0].bytes().decode()
    with pytest.raises(ValueError, match="no end"):
        not_after_dates(whole.partition("-----END")[0])
    lines = whole.splitlines()
    short = "\n".join([lines[0], lines[1], lines[-1]])
    with pytest.raises(ValueError, match="ends within"):
        not_after_dates(short)


def test_a_node_tells_when_what_it_lives_on_ends(tmp_path: Path) -> None:
    chain, old, new = (tmp_path / name for name in ("chain.pem", "old.pem", "both.pem"))
    first, later = (issued(end).cert_chain_pems[0].bytes() for end in ENDS[:2])
    chain.write_bytes(later + first)
    new.write_bytes(first + later)
    old.write_bytes(first)
    tls = ServerTls(str(chain), "unread", str(new))
    files = NodeFiles({"prefill_ca": str(old), "gone": str(tmp_path / "gone")})
    assert files.certificate_ends(tls) == {
        "tls_cert": ENDS[0].timestamp(),
        "tls_client_ca": ENDS[1].timestamp(),
        "prefill_ca": ENDS[0].timestamp(),
    }
    assert NodeFiles().certificate_ends(None) == {}


def test_the_files_of_other_tests_have_dates(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    leaf = authority.issue()
    for path in (authority.path, leaf.certificate):
        (found,) = not_after_dates(Path(path).read_text())
        known = x509.load_pem_x509_certificate(Path(path).read_bytes())
        assert found == known.not_valid_after_utc.timestamp()
