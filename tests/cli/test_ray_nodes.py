"""Tests of nodes as Ray's actors keep them, without Ray: nodes of several ranks and of mixed rank
counts."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count

import pytest

from tasuki.cli.ray.actor import RayNode, own_first
from tasuki.cli.ray.config import RayConfig, RayNodeError, check_nodes
from tasuki.cli.ray.main import main
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tests.harness.daemons import flags, random_prompt
from tests.harness.waiting import until

CUDA = ("--model", "m", "--device", "cuda")


@pytest.mark.parametrize(
    ("config", "more", "fix"),
    [
        ({"gpus": 1.0}, ("--tensor-parallel", "2"), "a prefill node .* give --gpus 2"),
        ({"gpus": 2.0, "prefill_gpus": 1.0}, ("--tp-size=2",), "give --prefill-gpus 2"),
        ({"prefill_gpus": 1.0}, ("--tensor-parallel", "2"), "a prefill .* give --prefill-gpus 2"),
        (
            {"gpus": 1.0, "prefill_gpus": 2.0, "prefill_flags": "--tensor-parallel 2"},
            ("--tensor-parallel-size", "4"),
            "a decode node has --tensor-parallel 4.* is given 1: give --gpus 4",
        ),
        ({"plan": True, "gpus": 2.0}, ("--tensor-parallel", "2"), "leave --plan out"),
    ],
)
def test_what_ray_gives_too_little_for_is_refused_at_once(
    config: dict[str, object], more: Sequence[str], fix: str
) -> None:
    with pytest.raises(RayNodeError, match=fix):
        check_nodes(RayConfig(**config), [*CUDA, *more])  # type: ignore[arg-type]


def test_what_fits_is_not() -> None:
    check_nodes(RayConfig(gpus=1.0), CUDA)
    check_nodes(RayConfig(gpus=2.0), [*CUDA, "--tensor-parallel", "2"])
    unequal = RayConfig(gpus=4.0, prefill_gpus=2.0, prefill_flags="--tensor-parallel 2")
    check_nodes(unequal, [*CUDA, "--tensor-parallel", "4"])
    # Ranks on a CPU share it.
    check_nodes(RayConfig(), ["--model", "m", "--tensor-parallel", "2"])


def test_the_command_refuses_too() -> None:
    with pytest.raises(RayNodeError, match="give --gpus 2"):
        main(["--gpus", "1", "--", *CUDA, "--tensor-parallel", "2"])
    with pytest.raises(SystemExit):
        main(["--plan", "--prefill-gpus", "1", "--", *CUDA])


def test_a_node_sees_its_own_gpus_first_and_the_machines_others_behind_them() -> None:
    assert own_first("2,3", 4) == "2,3,0,1"
    assert own_first("0", 1) == "0"
    # The node sees the other GPU but computes nothing on it.
    assert own_first("5", 2) == "5,0,1"
    assert own_first("GPU-1f,GPU-2e", 4) == "GPU-1f,GPU-2e" and own_first("", 4) == ""


@pytest.mark.slow
def test_nodes_of_unequal_numbers_of_ranks_find_each_other() -> None:
    with ExitStack() as stack:
        config = RayConfig(prefill_flags="--tensor-parallel 2")
        nodes = []
        for role in ("prefill", "decode"):
            node = RayNode(role, role, config.flags_of(role, flags()), "127.0.0.1")
            stack.callback(node.drain)
            nodes.append(node)
        prefill, decode = nodes
        members = [prefill.address()]
        address = decode.address()
        decode.follow(members)
        seeds = count()
        until(lambda: prefilled_on(address, next(seeds)) == "prefill", "no hand-over")


def prefilled_on(address: str, seed: int) -> str:

    with Client(address) as client:
        prompt = Prompt(token_ids=random_prompt(300, seed))
        return str(client.generate(prompt, max_new_tokens=2).result().usage.prefilled_on)
