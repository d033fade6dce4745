"""Tokens rendered differently by a chat template than before have their own cause."""

import pytest

from tasuki.cli.request_story import story
from tasuki.engine import messages as m
from tasuki.engine.accounting import with_changed
from tasuki.engine.messages import HitBreakdown
from tasuki.engine.messages.proto import FINISHED, PEERS_HIT
from tasuki.engine.messages.proto import HIT as HIT_TABLE
from tasuki.proto import inference_pb2 as pb
from tasuki.transfer.errors import PeerInvalid

IN_PAGES = HitBreakdown(100, 0, 0, {"new": 100}, None)
HIT = HitBreakdown(100, 70, 64, {"alignment": 6, "new": 30}, "mark", None, IN_PAGES)


@pytest.mark.parametrize(
    ("changed", "tokens"),
    [
        ((72, 90), 18),
        ((60, 90), 20),
        ((72, 400), 28),
        ((70, 100), 30),
        ((10, 70), 0),
        ((10, 20), 0),
        (None, 0),
    ],
)
def test_what_the_tree_takes_for_new_is_told_apart(
    changed: tuple[int, int] | None, tokens: int
) -> None:
    told = with_changed(HIT, changed)
    assert told.causes.get("template_changed", 0) == tokens
    assert told.usable_tokens + sum(told.causes.values()) == told.prompt_tokens
    assert told.causes["alignment"] == 6 and told.causes["new"] == 30 - tokens
    if changed is None or not tokens:
        assert told is HIT
        return
    begin, end = changed
    assert told.template_changed_at == begin
    assert told.in_pages is not None
    assert told.in_pages.causes["template_changed"] == min(end, 100) - begin
    assert sum(told.in_pages.causes.values()) == 100


def test_the_place_is_told_to_clients() -> None:
    for hit in (HIT, with_changed(HIT, (72, 90))):
        assert HIT_TABLE.from_wire(HIT_TABLE.to_wire(hit)) == hit


def test_explain_tells_the_first_token_that_differs() -> None:
    usage = m.Usage(100, 5, with_changed(HIT, (72, 90)), None, "local", False, 0.2, 1.0)
    end = m.Finished(m.RequestId("me"), m.FinishReason.STOP, usage)
    said = "\n".join(story(pb.ExplainResponse(request_id="me", finished=FINISHED.to_wire(end))))
    assert "template_changed         18" in said
    assert "changed  from token 72 on" in said


def test_a_peer_has_no_part_in_it() -> None:
    for hit in (
        HitBreakdown(100, 0, 0, {"template_changed": 100}, None),
        HitBreakdown(100, 0, 0, {"new": 100}, None, template_changed_at=5),
    ):
        with pytest.raises(PeerInvalid):
            PEERS_HIT.from_wire(HIT_TABLE.to_wire(hit))
