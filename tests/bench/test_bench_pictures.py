"""Tests of `tasuki bench pictures` on a tiny checkpoint: its rows and files, not its speed."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tasuki.bench.pictures import main
from tasuki.bench.vision.chat_client import Chat
from tasuki.bench.vision.checkpoint import file_of, vision_config, write_checkpoint
from tasuki.bench.vision.config import PicturesConfig
from tasuki.bench.vision.drawn import Screen
from tasuki.bench.vision.vocabulary import TEMPLATE_TOKENS, text_of
from tasuki.engine.config import EngineConfig
from tasuki.model.vision.weights import has_tower
from tasuki.server.text.tokenizer import Tokenizer

SMALL = ["--shape", "tiny", "--device", "cpu", "--width", "128", "--height", "96"]
SHORT = ["--rounds", "1", "--streams", "2", "--prompt", "40", "--seconds", "0.5", "--every", "0.25"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("drawn") / "model"
    write_checkpoint(found, "tiny", torch.device("cpu"))
    return found


def measured(folder: Path, out: Path, *flags: str) -> dict[str, dict[str, Any]]:
    """Run the bench and return its rows by name."""
    assert main([*SMALL, *SHORT, "--folder", str(folder), "--out", str(out), *flags]) == 0
    rows = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    assert all(row["seconds"] >= 0 for row in rows.values())
    return rows


@pytest.mark.usefixtures("forked")
def test_rows_of_stages_first_tokens_and_gaps(folder: Path, tmp_path: Path) -> None:
    rows = measured(folder, tmp_path / "rows.json", "--counts", "1,2")
    assert {"decode 2 pictures", "resize 1 picture and order its patches"} <= set(rows)
    assert sum(name.startswith("tower, ") for name in rows) == 2
    first = {name.rpartition(": ")[2] for name in rows if name.startswith("first token of tasuki")}
    assert first == {"cold", "prompt", "hit", "next turn", "text", "text hit"}
    cold = next(row for name, row in rows.items() if name.endswith("2 x 128 x 96: cold"))
    hit = next(row for name, row in rows.items() if name.endswith("2 x 128 x 96: hit"))
    text = next(row for name, row in rows.items() if name.endswith("2 x 128 x 96: text"))
    assert cold["extra"]["cached"] == 0 < hit["extra"]["cached"]
    assert cold["extra"]["prompt tokens"] == text["extra"]["prompt tokens"]
    gaps = [name for name in rows if name.startswith("p95 gap of 2 streams")]
    assert len(gaps) == 3 and any("a picture of 128 x 96" in name for name in gaps)


@pytest.mark.usefixtures("forked")
def test_rows_of_resent_pictures_and_text(folder: Path, tmp_path: Path) -> None:
    flags = ("--rows", "resent,text", "--screenshots", "2", "--sessions", "2", "--turns", "2")
    rows = measured(folder, tmp_path / "rows.json", *flags)
    (resent,) = (row for name, row in rows.items() if "resent in 1 turns" in name)
    assert resent["extra"]["cached"] > 0 and "0 decodes" in resent["target"]
    texts = [row for name, row in rows.items() if name.endswith("with a tower")]
    assert len(texts) == 2 and all(row["extra"]["hit rate"] > 0 for row in texts)


def test_a_drawn_checkpoint_is_whole(folder: Path) -> None:
    assert has_tower(folder)
    vocabulary = file_of("tiny")["text_config"]["vocab_size"]
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    assert len(tokenizer.encode(text_of("a", 37, vocabulary))) == 37
    assert len(tokenizer.encode("user\nassistant\n\n")) + 3 == TEMPLATE_TOKENS
    assert EngineConfig(model=str(folder)).model


def test_the_tower_of_9b_has_its_published_shape() -> None:
    tower = vision_config("9b")
    shape = (tower.depth, tower.hidden, tower.heads, tower.head_dim, tower.intermediate)
    assert shape == (27, 1152, 16, 72, 4304)
    assert tower.rotary_sections == (11, 11, 10) and tower.out_hidden == 4096


def test_screenshots_have_the_wanted_bytes() -> None:
    screen = Screen.of_bytes(640, 400, 60_000)
    one, again, other = screen.drawn(3), screen.drawn(3), screen.drawn(4)
    assert one.file == again.file != other.file
    assert abs(len(one.file) - 60_000) < 9_000
    with Image.open(io.BytesIO(one.file)) as image:
        assert image.size == (640, 400) and image.format == "PNG"


def test_gaps_lie_inside_a_window() -> None:
    chat = Chat(times=[1.0, 2.0, 2.5, 4.0, 9.0])
    assert list(chat.gaps(2.0, 5.0)) == [0.5, 1.5]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"rows": "stages,nothing"}, "rows"),
        ({"counts": "0,x"}, "counts"),
        ({"node": "none"}, "servers"),
        ({"servers": "127.0.0.1:80"}, "NAME=HOST:PORT"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_bad_flags_are_named(flags: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        PicturesConfig(**flags)
