"""`tasuki chat` against a scripted front, and once for real."""

import io
import sys
from pathlib import Path

from tasuki.cli.chat import ChatConfig, sampling_of
from tasuki.cli.chat_screen import Chat
from tasuki.client.session import Client
from tasuki.engine import messages as m
from tasuki.utils.program import PACKAGE
from tests.harness.daemons import Node, flags
from tests.harness.grpc_fixtures import running_front, text_codec
from tests.harness.picture_answers import CASES, FOLDER
from tests.harness.picture_files import png_of
from tests.harness.picture_goldens import needs_goldens
from tests.harness.programs import output_of
from tests.harness.running_nodes import running


def talked(tmp_path: Path, *lines: str, **settings: str) -> tuple[str, list[list[int]], int]:
    """Return the printed text, the prompts sent, and the number of sessions left open."""
    out = io.StringIO()
    with running_front(text_codec(tmp_path)) as front, Client(front.address) as client:
        config = ChatConfig(**settings)
        Chat(client, config.system, sampling_of(config), out).run(iter(lines))
        prompts = [submit.prompt.tolist() for submit in front.engine.of(m.Submit)]
        return out.getvalue(), prompts, client.stats().sessions


def test_turns_continue_and_a_new_one_begins_again(tmp_path: Path) -> None:
    told, prompts, left = talked(tmp_path, "it was", "", "fine", "/new", "it was")
    assert len(prompts) == 3 and left == 0
    assert prompts[1][: len(prompts[0])] == prompts[0] == prompts[2]
    assert told.count("prompt tokens, 2 cached, prefilled on p0; 3 new") == 3
    assert "[a new conversation]" in told


def test_a_fork_comes_back_to_where_it_left(tmp_path: Path) -> None:
    told, prompts, left = talked(tmp_path, "it was", "/fork", "one", "/back", "two", "/back")
    assert len(prompts) == 3 and left == 0
    common = len(prompts[0])
    assert prompts[1][:common] == prompts[2][:common] == prompts[0]
    assert prompts[1] != prompts[2] and len(prompts[2]) == len(prompts[1])
    assert "there is no fork to come back from" in told


def test_a_system_message_comes_first_and_once(tmp_path: Path) -> None:
    _, with_system, _ = talked(tmp_path, "it was", "fine", system="the end")
    _, without, _ = talked(tmp_path, "it was", "fine")
    added = len(with_system[0]) - len(without[0])
    assert added > 0 and len(with_system[1]) - len(without[1]) == added


def test_what_it_does_not_know_it_says(tmp_path: Path) -> None:
    told, prompts, _ = talked(tmp_path, "/what", "/help", "/stats", "/quit", "never sent")
    assert "/what is no command" in told and "/fork" in told and "pages: " in told
    assert prompts == []


def test_a_chat_with_a_node_of_its_own() -> None:
    command = [sys.executable, "-m", f"{PACKAGE}.cli.main", "chat", "--max-new-tokens", "8"]
    told = output_of(command, input="Where does Elizabeth live?\n")
    assert "8 new" in told and "> " not in told


@needs_goldens
def test_pictures_go_with_the_next_message(tmp_path: Path) -> None:
    """The chat has the tokens of the golden one, and its second turn encodes nothing again."""
    out = io.StringIO()
    case = CASES["middle"]
    (text, image, behind) = case["messages"][0]["content"]
    words = (text["text"] + behind["text"], str(FOLDER / "images" / image["image"]))
    config = ChatConfig(max_new_tokens=4, temperature=0.0)
    lines = (f"/image {words[1]}", words[0], "again", "/image nowhere.png", "/image")
    with running(Node("serve", *flags(FOLDER, arena_mib=16))) as node:
        Chat(node.client, "", sampling_of(config), out).run(iter(lines))
        assert node.client.stats().sessions == 0
    told = out.getvalue()
    # The picture comes first here, so the prompt has the golden one's tokens in another order.
    assert f"[{len(case['prompt'])} prompt tokens (12 of pictures: 1 encoded), 0 cached" in told
    assert "(12 of pictures: 1 skipped)" in told
    assert "[picture 1 for the next message]" in told
    assert "nowhere.png is no file: /image FILE" in told and "no name is no file" in told


def test_a_node_without_a_tower_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(png_of(4, 4))
    told, prompts, left = talked(tmp_path, f"/image {file}", "see", "it was")
    assert "the turn failed: messages.items[0].parts[0] is a picture: " in told
    assert len(prompts) == 1 and left == 0
