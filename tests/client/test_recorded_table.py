"""Tests of the table written into docs/results/agent_clients.md by `python -m scripts.clients`."""

import pytest

from scripts.clients.agent_table import ARRANGEMENTS, CLIENTS, DOCUMENT, with_rows
from scripts.clients.agents.columns import COLUMNS
from scripts.clients.install import NODE_PACKAGES, PACKAGES, pins

HEAD = "before\n<!-- pair -->\n| pair | text |\n| --- | --- |\n"
END = "<!-- end -->\nbehind\n"
ORDER = ("openai", "llm", "codex")


def test_rows_take_their_places_and_the_others_stay() -> None:
    text = f"{HEAD}| codex 1 | no |\n{END}"
    text = with_rows(text, "pair", ORDER, {"openai": "| openai 3 | yes |"})
    assert text == f"{HEAD}| openai 3 | yes |\n| codex 1 | no |\n{END}"
    rows = {"codex": "| codex 2 | yes |", "llm": "| llm 0 | - |"}
    text = with_rows(text, "pair", ORDER, rows)
    assert text == f"{HEAD}| openai 3 | yes |\n| llm 0 | - |\n| codex 2 | yes |\n{END}"


def test_a_document_without_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no table fused"):
        with_rows(HEAD + END, "fused", ORDER, {})


def test_a_client_is_told_with_its_version() -> None:
    assert pins("openai") == PACKAGES["openai"][0].removeprefix("openai==")
    assert pins("codex") == NODE_PACKAGES["codex"][0].replace("codex@", "codex ")


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_the_document_s_rows_are_of_the_versions_that_are_installed(arrangement: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    table = text.split(f"<!-- {arrangement} -->\n")[1].split("<!-- end -->")[0].splitlines()
    rows = {line.split()[1]: line for line in table[2:]}
    assert rows and [*rows] == [client for client in CLIENTS if client in rows]
    for client, line in rows.items():
        assert line.startswith(f"| {client} {pins(client)} |")
        assert line.count("|") == len(COLUMNS) + 2
