"""Two nodes swap their roles under load, and no request fails that may be asked again."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from tasuki.client.answer import Answer
from tasuki.client.channel import open_channel
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.retry import RetryPolicy
from tasuki.client.role import change_role
from tasuki.client.role import main as role_command
from tasuki.client.session import Client
from tasuki.client.verdict import TIE_MARGIN
from tasuki.engine.config import EngineConfig
from tasuki.front.config import FrontConfig
from tasuki.front.errors import InvalidRequest, RoleFixed
from tasuki.front.role_change import RoleChange
from tasuki.prefill_node.config import PrefillConfig

from tests.daemons import NEW_TOKENS, Node, Question, asked, flags, random_prompt, until
from tests.etcd_process import running_etcd

ONCE = RetryPolicy(attempts=1)
# Another node may answer: this one drains, is away, or is no front door now.
ELSEWHERE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED)


class Callers:
    """Ask questions over and over at whichever node answers, until told to stop."""

    def __init__(self, addresses: tuple[str, ...], asked: tuple[Question, ...]) -> None:
        self._addresses = addresses
        self._questions = asked
        self._over = threading.Event()
        self.answers = 0

    def run(self, caller: int) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            question = self._questions[(caller + turn) % len(self._questions)]
            salt = f"{caller}-{turn}".encode()
            answer = self._answer(question, salt, start=caller + turn)
            assert answer.token_ids == question.tokens
            self.answers += 1

    def _answer(self, question: Question, salt: bytes, start: int) -> Answer:
        refusals: list[str] = []
        for attempt in range(200):
            address = self._addresses[(start + attempt) % len(self._addresses)]
            try:
                with Client(address, retry=ONCE) as client:
                    return client.generate(
                        Prompt(token_ids=question.prompt),
                        max_new_tokens=len(question.tokens),
                        ignore_eos=True,
                        cache_salt=salt,
                    ).result()
            except ClientError as error:
                assert error.status in ELSEWHERE, error
                refusals.append(str(error))
            self._over.wait(0.05)
        raise AssertionError(f"nobody answers: {refusals[-3:]}")

    def stop(self) -> None:
        self._over.set()


def change(node: Node, role: str, **settings: str) -> None:
    with open_channel(node.address, None) as channel:
        change_role(channel, role, settings, wait_seconds=60)


@pytest.mark.timeout(240)
def test_two_nodes_swap_roles_under_load(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd:
        shared = [*flags(), "--etcd", etcd.url, "--local-prefill-tokens", "64"]
        one = Node("prefill", *shared, "--name", "one").wait_ready()
        other = Node("decode", *shared, "--name", "other").wait_ready()
        try:
            asked_for = tuple(answered(other, length) for length in (150, 300))
            callers = Callers((one.address, other.address), asked_for)
            with ThreadPoolExecutor(3) as pool:
                running = [pool.submit(callers.run, caller) for caller in range(3)]
                try:
                    until(lambda: other.landed() > 0, other.story, seconds=30)
                    # Two front doors for a while, then the first has a prefill node again.
                    change(one, "decode")
                    change(other, "prefill")
                    until(lambda: one.landed() > 0, one.story, seconds=30)
                finally:
                    callers.stop()
                for caller in running:
                    caller.result()
            assert callers.answers > 4
            for node in (one, other):
                node.assert_at_rest()
            # Idle, and by the command.
            assert role_command(["decode", "--target", other.address]) == 0
            assert asked(other, asked_for[0].prompt, b"idle").result().token_ids
        finally:
            assert [one.stop(), other.stop()] == [0, 0]


def answered(node: Node, length: int) -> Question:
    """A prompt and its answer, which is far from any near tie, so that equality means something."""
    for seed in range(20):
        prompt = random_prompt(length, seed)
        answer = asked(node, prompt, b"", NEW_TOKENS // 2).result()
        if min(answer.margins) > TIE_MARGIN:
            return Question(prompt, answer.token_ids)
    raise AssertionError(f"no prompt of {length} tokens without a near tie")


def make_change(**changes: object) -> tuple[RoleChange, list[int]]:
    front = FrontConfig(api_key="secret", **changes)  # type: ignore[arg-type]
    role = RoleChange(
        "prefill", (EngineConfig(model="m"), front, PrefillConfig(advertise="10.0.0.1:7"))
    )
    return role, []


def test_what_the_new_role_would_refuse_changes_nothing() -> None:
    role, stops = make_change(drain_timeout=7.0)
    with pytest.raises(RoleFixed, match="still starting"):
        role.ask("decode", {})
    role.offer("127.0.0.1:7", None, lambda: stops.append(1))
    with pytest.raises(InvalidRequest, match="role must be"):
        role.ask("", {})
    with pytest.raises(InvalidRequest, match=r"settings\.advertise"):
        role.ask("decode", {"advertise": "127.0.0.1:7"})
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        role.ask("decode", {"prefill": "nowhere"})
    with pytest.raises(InvalidRequest, match="arena-mib"):
        role.ask("decode", {"arena_mib": "much"})
    role.ask("prefill", {})
    assert role.wanted is None and not stops
    role.ask("decode", {"prefill": "127.0.0.1:9"})
    role.ask("decode", {})
    assert role.wanted is not None and stops == [1]
    assert role.wanted.settings == {
        "model": "m",
        "api_key": "secret",
        "drain_timeout": 7.0,
        "bind": "127.0.0.1:7",
        "http_bind": "",
        "prefill": "127.0.0.1:9",
    }
    with pytest.raises(RoleFixed, match="becoming a decode node"):
        role.ask("prefill", {})
