"""Weights with a known digest are not read again, and others are never taken for them."""

import json
import os
from pathlib import Path
from stat import S_IMODE

import pytest

from tasuki.engine.tiers.disk import kept_folder
from tasuki.engine.tiers.disk.kept_folder import KnownWeights, digest_of_weights
from tasuki.model.weights.safetensors_folder import file_digest, weights_digest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.safetensors").write_bytes(bytes([number]) * 5000)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "disk"
    found.mkdir()
    return found


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files as they are read. Their times count as settled."""
    names: list[str] = []

    def digest(path: Path) -> bytes:
        names.append(path.name)
        return file_digest(path)

    file_time = KnownWeights._file_time
    monkeypatch.setattr(kept_folder, "file_digest", digest)
    monkeypatch.setattr(KnownWeights, "_file_time", lambda self: (file_time(self) or 0) + 10)
    return names


def test_each_file_is_read_once(model: Path, folder: Path, read: list[str]) -> None:
    expected = weights_digest(model)
    for _ in range(2):
        assert digest_of_weights(str(model), str(folder)) == expected
        assert sorted(read) == ["0.safetensors", "1.safetensors", "2.safetensors"]
    assert S_IMODE((folder / "weights.json").stat().st_mode) == 0o600
    assert [each.name for each in folder.iterdir()] == ["weights.json"]
    assert digest_of_weights(str(model), None) == expected


def test_a_file_that_changed_is_read_again(model: Path, folder: Path, read: list[str]) -> None:
    before = digest_of_weights(str(model), str(folder))
    read.clear()
    file = model / "1.safetensors"
    times = file.stat()
    # The new content has the same length, is written in place, and its time is set back.
    file.write_bytes(b"x" * 5000)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digest_of_weights(str(model), str(folder)) == weights_digest(model) != before
    assert read == ["1.safetensors"]
    # Another file with the same name.
    other = model / "other"
    other.write_bytes(b"y" * 5000)
    os.replace(other, file)
    assert digest_of_weights(str(model), str(folder)) == weights_digest(model)


def test_what_was_changed_just_now_is_not_noted(
    model: Path, folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        KnownWeights, "_file_time", lambda self: (model / "0.safetensors").stat().st_ctime
    )
    for _ in range(2):
        assert digest_of_weights(str(model), str(folder)) == weights_digest(model)
    assert len(read) == 6


@pytest.mark.parametrize("content", ["", "[]", '{"a": 3}', '{"a": [1, 2, 3, 4, 5, "zz"]}', "\0"])
def test_what_is_no_note_is_no_error(
    model: Path, folder: Path, read: list[str], content: str
) -> None:
    (folder / "weights.json").write_text(content)
    assert digest_of_weights(str(model), str(folder)) == weights_digest(model)
    assert len(read) == 3


def test_anothers_words_are_not_believed(model: Path, folder: Path, read: list[str]) -> None:
    digest_of_weights(str(model), str(folder))
    note = folder / "weights.json"
    known = json.loads(note.read_text())
    note.write_text(json.dumps({name: [*row[:-1], "00" * 32] for name, row in known.items()}))
    note.chmod(0o666)
    assert digest_of_weights(str(model), str(folder)) == weights_digest(model)
    note.unlink()
    elsewhere = folder / "elsewhere"
    elsewhere.write_text("{}")
    note.symlink_to(elsewhere)
    assert digest_of_weights(str(model), str(folder)) == weights_digest(model)
