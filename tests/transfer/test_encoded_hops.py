"""The same walk along the protocol's tables over a wire of fp8: a receiver that decodes in place is
a writer too, and a cell of the sender's staging has one holder."""

from hypothesis import settings
from tasuki.transfer.precision.encoding_source import StagedOutlet
from tasuki.transfer.precision.precision import Precision, WirePrecision
from tasuki.transfer.precision.wire_layout import WireUnits

from tests.transfer.test_encoded_wire import expected_page, expected_slot
from tests.transfer.test_hop_state_machine import LAYOUT, Hops, Room, ids_in


class EncodedHops(Hops):
    precision = WirePrecision(Precision.FP8, Precision.FP8)
    # So much that no window is cut, and that all of both rooms of a way may be held on the
    # wire at once: whether one is posted must not depend on what others do.
    kept_back = 8

    def assert_equal(self, room: Room) -> None:
        units = WireUnits.of(LAYOUT, self.precision)
        (pages, slot), source = ids_in(room.slabs), ids_in(room.source_slabs)
        for ours, theirs in zip(pages, source[0], strict=True):
            sent = expected_page(units, room.way.source, theirs)
            assert room.way.target.page_bytes(ours) == sent
        assert room.way.target.slot_bytes(slot) == expected_slot(units, room.way.source, source[1])

    def teardown(self) -> None:
        super().teardown()
        for way in getattr(self, "ways", {}).values():
            outlet = way.source.outlet
            assert isinstance(outlet, StagedOutlet)
            assert outlet.cells.in_use == 0, way.name


TestEncodedHops = EncodedHops.TestCase
TestEncodedHops.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
