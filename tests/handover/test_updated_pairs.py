"""Updates of both ends of a pair, one after the other. While the ends differ no transfer leads from
one to the other. Once they are equal they share, whichever node was updated or started."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasuki.client.answer import Answer
from tasuki.proto import inference_pb2 as pb
from tests.harness.daemons import (
    TIE_MARGIN,
    Node,
    asked,
    embedded_model,
    flags,
    fleet,
    meet,
    random_prompt,
)
from tests.harness.http_calls import ask
from tests.harness.running_nodes import HTTP, needs_nixl
from tests.harness.versions import version
from tests.harness.waiting import until

pytestmark = [needs_nixl, pytest.mark.slow]

TURN = 300
TOKENS = 6
ROUTED = ("--local-prefill-tokens", "0", *HTTP)
Start = Callable[..., Node]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("versions")
    first, second = (version(root / str(seed), seed, embedded_model()) for seed in (1, 2))
    return first, second


@pytest.fixture
def start() -> Iterator[Start]:
    with fleet() as launch:
        yield launch


def update(node: Node, folder: Path) -> None:
    body = {"model_path": str(folder), "weight_version": folder.name}
    reply = ask(node.http_address, "POST", "/update_weights_from_disk", body)
    assert reply.status == 200, reply


class Fused:
    """Answers of one version by a node of its own, to prompts without a near tie."""

    def __init__(self, start: Start, folder: Path) -> None:
        self._node = start("serve", *flags(folder))

    def prompt(self, number: int) -> tuple[int, ...]:
        for seed in range(number * 20, number * 20 + 20):
            prompt = random_prompt(TURN, seed)
            if min(self._asked(prompt).margins) > TIE_MARGIN:
                return prompt
        raise AssertionError("no prompt without a near tie")

    def answer(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        return self._asked(prompt).token_ids

    def _asked(self, prompt: tuple[int, ...]) -> Answer:
        return asked(self._node, prompt, b"", TOKENS).result()


def refused(node: Node) -> bool:
    (link,) = node.stats().prefill_nodes
    return link.state == pb.PREFILL_NODE_STATE_REFUSED


@pytest.mark.parametrize("first_end", ["prefill", "decode"])
def test_no_transfer_leads_from_one_version_to_another(
    start: Start, folders: tuple[Path, Path], first_end: str
) -> None:
    old, new = folders
    before, after = Fused(start, old), Fused(start, new)
    prefill = start("prefill", *flags(old), "--name", "p", *HTTP)
    decode = start("decode", *flags(old), *ROUTED, "--prefill", prefill.address)
    ends = {"prefill": prefill, "decode": decode}
    meet(decode)

    def turn(fused: Fused, number: int) -> str:
        prompt = fused.prompt(number)
        answer = asked(decode, prompt, b"salt", TOKENS).result()
        assert answer.token_ids == fused.answer(prompt)
        return answer.usage.prefilled_on

    assert turn(before, 1) == "p"
    prompts = [before.prompt(number) for number in (2, 3)]
    running = [asked(decode, prompt, b"salt", TOKENS) for prompt in prompts]
    update(ends.pop(first_end), new)
    for prompt, stream in zip(prompts, running, strict=True):
        # One that had not begun may be of the later version.
        assert stream.result().token_ids in (before.answer(prompt), after.answer(prompt))
    until(lambda: refused(decode), lambda: decode.stats().prefill_nodes)
    # The prompt was computed on the pair before: nothing of then is found.
    now = before if first_end == "prefill" else after
    assert turn(now, 1) == "local" and turn(now, 4) == "local"
    update(*ends.values(), new)
    meet_again(decode)
    assert turn(after, 1) == "p" or first_end == "decode"
    assert turn(after, 5) == "p"
    assert turn(after, 5) in ("p", "local")


def meet_again(decode: Node) -> None:
    until(lambda: not refused(decode), lambda: decode.stats().prefill_nodes)
    meet(decode)


def test_updated_and_started_nodes_share_in_every_order(
    start: Start, folders: tuple[Path, Path]
) -> None:
    old, new = folders
    fused = Fused(start, new)
    prefill = {
        name: start("prefill", *flags(folder), "--name", name, "--route", "auto", *HTTP)
        for name, folder in (("updated", old), ("started", new))
    }
    targets = ",".join(node.address for node in prefill.values())
    routed = ("--route", "cost", *ROUTED, "--prefill", targets)
    decode = {
        name: start("decode", *flags(folder), *routed)
        for name, folder in (("updated", old), ("started", new))
    }
    update(prefill["updated"], new)
    update(decode["updated"], new)
    for node in decode.values():
        meet(node)
    seen = set()
    for number in range(8):
        writer, reader = list(decode)[number % 2], list(decode)[number // 2 % 2]
        salt = f"conversation {number}".encode()
        prompt = fused.prompt(number)
        first = asked(decode[writer], prompt, salt, TOKENS).result()
        assert first.token_ids == fused.answer(prompt)
        holder = prefill[first.usage.prefilled_on]
        indexed(decode[reader], holder, first.usage.prefilled_on)
        longer = prompt + random_prompt(TURN, 1000 + number)
        second = asked(decode[reader], longer, salt, TOKENS).result()
        assert second.token_ids == fused.answer(longer)
        if writer != reader:
            assert second.usage.prefilled_on == first.usage.prefilled_on
            assert second.usage.hit is not None and second.usage.hit.usable_tokens >= 256
        seen.add((first.usage.prefilled_on, writer, reader))
    assert {holder for holder, writer, reader in seen if writer != reader} == set(prefill)


def indexed(decode: Node, holder: Node, name: str) -> None:
    """Wait until a decode node knows the prefixes of a prefill node."""

    def known() -> bool:
        held = {node.name: node.usable_prefixes for node in decode.stats().prefill_nodes}
        return held[name] == holder.stats().tree["checkpoints"]

    until(known, lambda: decode.stats().prefill_nodes)
