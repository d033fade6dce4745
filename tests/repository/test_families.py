"""Families of models are known to the registry alone; see docs/new-family.md."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FAMILIES = "model/families/"
_ROOMS = "bench cli client dashboard decode_node engine model prefill_node pycache routing server"
_ROOMS += " transfer utils"
_NAME = re.compile(
    r"qwen_?3_?5|qwen_?35|qwen_?3_?next|qwen_?4_?exp|kimi_?linear"
    r"|model\.families\.(?!family\b|loading\b|registry\b)\w",
    re.IGNORECASE,
)
"""A family's name in code: its `model_type`, folder or classes. A model's name with a point, as
Qwen3.5-9B in an example, is none."""
_PART = re.compile(r"\b(Gdn\w+|DeltaNet\w+|MoeShape|DenseShape|TritonBackend)\b|\.gdn\b")
"""A part of a family's layers, for rooms above the model."""
_OF_ONE = {
    "model/vision/config.py": "reads the config of one tower, which several families share",
    "model/vision/prompt_positions.py": "cites its source in transformers",
    "bench/vision/checkpoint.py": "writes the published files of one family",
    "bench/measure/transformers_peer.py": "builds one family's class of transformers",
}
_KERNEL_BENCHES = ("bench/cases/", "bench/kernels.py", "bench/measure/transformers_peer.py")


def sources() -> list[str]:
    listed = ["git", "-C", str(ROOT), "ls-files", *(f"{room}/*.py" for room in _ROOMS.split())]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()


def lines_with(pattern: re.Pattern[str], files: list[str]) -> list[str]:
    return [
        f"{file}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate((ROOT / file).read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_outside_its_folder_names_a_family() -> None:
    files = [file for file in sources() if not file.startswith(_FAMILIES)]
    found = lines_with(_NAME, [file for file in files if file not in _OF_ONE])
    assert len(files) > 400 and not found, "\n".join(found)
    assert all(lines_with(_NAME, [file]) for file in _OF_ONE)


def test_no_room_above_the_model_knows_parts_of_its_layers() -> None:
    files = [
        file
        for file in sources()
        if not file.startswith(("model/", *_KERNEL_BENCHES, "pycache/", "transfer/"))
    ]
    found = lines_with(_PART, files)
    assert len(files) > 300 and not found, "\n".join(found)


def test_families_import_no_other_family_by_accident() -> None:
    """A family may build on another. It then names the other one in its own docstring."""
    folders = [path.name for path in (ROOT / _FAMILIES).iterdir() if (path / "family.py").exists()]
    assert folders
    for folder in folders:
        files = sorted((ROOT / _FAMILIES / folder).glob("*.py"))
        text = "".join(file.read_text() for file in files)
        own = (ROOT / _FAMILIES / folder / "__init__.py").read_text()
        for other in set(folders) - {folder}:
            if f"families.{other}" in text:
                assert other in own, f"{folder} builds on {other}, and does not say so"
