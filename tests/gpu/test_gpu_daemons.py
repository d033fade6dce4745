"""Real daemons on a GPU answer as a CPU does: alone, and as a pair with hand-overs by NIXL.

Both nodes of the pair share one GPU here. KV and state go from one arena in its memory to the
other, and digests are checked there.
"""

import pytest

from tasuki.cli.demo import TIE_MARGIN
from tasuki.transfer.transports.nixl.transport import installed_package
from tests.harness.daemons import Node, Pair, Question, asked, flags, questions, random_prompt


@pytest.fixture(scope="module")
def told() -> tuple[Question, ...]:
    return questions((1500, 300, 70))


def test_serve(told: tuple[Question, ...]) -> None:
    node = Node("serve", *flags(device="cuda"), "--prefill-chunk-tokens", "512").wait_ready()
    try:
        for number, question in enumerate(told):
            answers = [asked(node, question.prompt, b"%d" % number) for _ in range(3)]
            for answer in answers:
                assert answer.result().token_ids == question.tokens
        node.assert_at_rest()
    finally:
        assert node.stop() == 0


@pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")
def test_a_pair_hands_over_between_arenas_on_the_gpu(told: tuple[Question, ...]) -> None:
    pair = Pair(told, device="cuda")
    try:
        pair.fix()
        for number in range(len(told)):
            streams = [pair.ask(number) for _ in range(2)]
            for stream in streams:
                usage = pair.right(number, stream).usage
                # The shortest is below local_prefill_tokens and stays.
                assert (usage.prefilled_on == "local") == (number == 2)
                assert not usage.local_fallback
        pair.assert_at_rest()
    finally:
        pair.stop()


@pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")
def test_a_session_is_pulled_back_between_arenas_on_the_gpu(told: tuple[Question, ...]) -> None:
    oracle = Node("serve", *flags(), "--prefill-chunk-tokens", "512").wait_ready()
    pair = Pair(told, device="cuda")
    try:
        pair.fix()
        history, pulls = told[1].prompt, 0
        for turn in range(3):
            answer = asked(pair.decode, history, b"session").result()
            expected = asked(oracle, history, b"session").result()
            near_tie = next(
                (at for at, margin in enumerate(expected.margins) if margin < TIE_MARGIN), None
            )
            assert answer.token_ids[:near_tie] == expected.token_ids[:near_tie]
            assert not answer.usage.local_fallback
            pulls += answer.usage.pulled is not None
            history = (*history, *answer.token_ids, *random_prompt(200, turn))
        assert pulls == 2, "every turn but the first"
        pair.assert_at_rest()
    finally:
        pair.stop()
        assert oracle.stop() == 0
