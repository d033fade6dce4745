"""The demo's picture: shown only with a tower and Pillow."""

from pathlib import Path

import pytest

from tasuki.cli import demo, demo_picture
from tasuki.cli.demo_picture import picture_of, show_picture
from tasuki.cli.launcher import disaggregated
from tasuki.client.session import Client
from tasuki.engine.messages import PictureOutcome
from tasuki.model.named_checkpoints import embedded_model
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


def test_a_pair_describes_the_picture_and_never_looks_twice() -> None:
    """The prompt is handed over with its picture. The second question hits behind it."""
    file = picture_of(str(embedded_model()))
    assert file is not None
    rows: list[str] = []
    flags = ["--model", str(embedded_model()), "--dtype", "float32", "--arena-mib", "128"]
    handed_over = ["--local-prefill-tokens", "32"]
    with disaggregated(flags, handed_over) as address, Client(address) as client:
        first, second = show_picture(client, file, rows.append)
    assert first.text == second.text == "A blue circle."
    assert first.usage.transfer is not None and first.usage.transfer.bytes > 0
    outcomes = [
        [one.outcome for one in answer.usage.pictures.each]
        for answer in (first, second)
        if answer.usage.pictures is not None
    ]
    assert outcomes == [[PictureOutcome.ELSEWHERE], [PictureOutcome.SKIPPED]]
    assert "not encoded" in rows[-1]
