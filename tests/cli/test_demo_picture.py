"""The demo's picture: shown only with a tower and Pillow."""

from pathlib import Path

import pytest

from tasuki.cli import demo, demo_picture
from tasuki.cli.demo_picture import picture_of
from tests.harness.goldens import reference_dir


def test_a_model_without_a_tower_has_no_picture() -> None:
    assert picture_of(str(reference_dir("small-dense"))) is None


def test_without_pillow_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []

    def played(*arguments: object) -> list[object]:
        asked.append(arguments[-1])
        raise InterruptedError

    monkeypatch.setattr(demo, "picture_of", lambda model: b"a picture")
    monkeypatch.setattr(demo, "can_decode", lambda: False)
    monkeypatch.setattr(demo, "play", played)
    with pytest.raises(InterruptedError):
        demo.main([])
    assert demo_picture.NO_PILLOW in capsys.readouterr().out
    assert None in asked and not any(isinstance(given, bytes) for given in asked)


def test_the_picture_is_in_the_package() -> None:
    assert (Path(demo_picture.__file__).parent / "demo_picture.png").stat().st_size < 4000
