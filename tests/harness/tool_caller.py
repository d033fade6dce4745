"""The tool caller (a small model trained by tools/tool_caller to make requested tool calls), as a
checkpoint folder with a chat template."""

import shutil
from pathlib import Path

from tests.harness.dictated_node import template_source

_MODEL = Path(__file__).parents[1] / "tool_caller"


def tool_caller(folder: Path, template: str) -> Path:
    """Write the tool caller's checkpoint to `folder`; the folder must not exist yet. template: name
    of a published chat template."""
    assert _MODEL.exists(), "train it: tools/tool_caller/README.md"
    shutil.copytree(_MODEL, folder)
    (folder / "chat_template.jinja").write_text(template_source(template), encoding="utf-8")
    return folder
