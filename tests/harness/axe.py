"""axe-core's judgement of a page as it is drawn: what people who do not see it, or little, meet."""

import json
from functools import cache
from typing import Any

import pytest

from scripts.clients.install import FOLDER
from tests.harness.pages import Opened

SCRIPT = FOLDER / "axe" / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = ("serious", "critical")
_RUN = """axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations.map(
  one => [one.impact, one.id, one.nodes.map(node => node.html.slice(0, 160)).slice(0, 4)]))"""


@cache
def _source() -> str:
    if not SCRIPT.exists():
        pytest.skip("axe-core is not installed: python -m scripts.clients.install axe")
    return SCRIPT.read_text(encoding="utf-8")


def grave_findings(seen: Opened) -> list[str]:
    """Those of impact serious or critical, each with some elements that it is about."""
    seen.page.evaluate(_source())
    found: list[list[Any]] = seen.page.evaluate(_RUN)
    return [json.dumps(one) for one in found if one[0] in GRAVE]
