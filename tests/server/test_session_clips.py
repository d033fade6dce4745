"""Tests of clips in a session's log: both files of a pair are counted, named and dropped."""

from dataclasses import replace

from tasuki.engine.messages import FileCoding, Media, PictureFile, PromptPicture
from tasuki.pycache.keys import PictureDigest
from tasuki.server.pictures.kept_pictures import SessionPictures


def file(size: int, place: str) -> PictureFile:
    return PictureFile(Media(bytes(size)), FileCoding.PLAIN, 4, 6, place)


def test_both_files_of_a_pair_are_held_and_dropped() -> None:
    image = PromptPicture(1, 1, 1, PictureDigest(b"a" * 32), file=file(10, "a"))
    pair = replace(image, start=4, file=file(20, "b"), second=file(30, "c"))
    log = SessionPictures()
    log.append([image, pair], 100)
    assert log.nbytes == 60
    named = log.placed[1].files
    assert [each.place for each in named] == [
        "picture 2 of the session (b)",
        "picture 2 of the session (c)",
    ]
    assert log.drop_oldest() == 10 and log.nbytes == 50
    assert log.drop_oldest() == 50 and log.nbytes == 0
    gone = log.placed[1].files
    assert [each.coding for each in gone] == [FileCoding.GONE] * 2
    assert log.placed[1].start == 104 and log.drop_oldest() == 0
