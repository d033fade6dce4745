"""A comparison of rules for keeping states beside pictures, on traces of questions about pictures.

Usage: picture_states.py [--quick] [--output FOLDER]. Plays each trace of `QUESTIONS` through
tasuki's prefix tree with each rule, once with an arena for everything and once with a small one.
Counts hit tokens, encodes, states and pages; times nothing. Encodes are counted with a row budget
of a few pictures, least recently used first.
"""

import argparse
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from workloads import PAGE, QUESTIONS, Question, Questions

from tasuki.bench.measure.host import describe_host
from tasuki.bench.measure.results import Document, RunFile, Section, markdown_table
from tasuki.engine.scheduling.checkpoints import (
    before_picture,
    behind_picture,
    plan_checkpoints,
)
from tasuki.model.vision.prompt_positions import PictureRun
from tasuki.pycache._cpp_cache import CheckpointKind, Match, PrefixCache, TreeConfig
from tasuki.pycache.keys import Keys

ROOT = Path(__file__).resolve().parents[2]
PAGES_PER_SLAB = 24
ROW_TOKENS = 16 * 1_024
SMALL = 0.15
"""Size of the small arena, as a part of one for everything."""


@dataclass(frozen=True)
class Asked:
    """A prompt at its allocation. tokens: of the prompt. cached: tokens not computed. message_end:
    end of the last message; None: the next turn goes on behind the answer."""

    tokens: int
    cached: int
    match: Match
    runs: Sequence[PictureRun]
    message_end: int | None

    def among(self, places: set[int]) -> set[int]:
        """Return the places of states that can be kept."""
        return {place for place in places if self.cached < place < self.tokens}


Rule = Callable[[Asked], set[int]]
"""Return the positions of a prompt's states."""


def nothing_behind(asked: Asked) -> set[int]:
    """Return the prompt's end and its branch point, moved before pictures, and the message's
    end."""
    end, branch = (asked.tokens - 1) // PAGE * PAGE, asked.match.branch_tokens
    wanted = {end, before_picture(end, asked.runs)}
    if asked.message_end is not None:
        if max(asked.cached, end - PAGE) < asked.message_end < end:
            wanted.clear()
        wanted.add(asked.message_end)
    if branch is not None:
        wanted.add(before_picture(branch, asked.runs))
    return asked.among(wanted)


def at_second_sight(asked: Asked) -> set[int]:
    """As nothing_behind(); a branch point in a picture's last page moves behind the picture."""
    wanted, branch = nothing_behind(asked), asked.match.branch_tokens
    if branch is not None and before_picture(branch, asked.runs) != branch:
        behind = behind_picture(min(branch + PAGE, asked.tokens) - 1, asked.runs)
        if behind > branch:
            wanted = (wanted - {before_picture(branch, asked.runs)}) | {behind}
    return asked.among(wanted)


def always_behind_the_last(asked: Asked) -> set[int]:
    """As nothing_behind(), with one more state behind the last picture."""
    behind = behind_picture(asked.tokens - 1, asked.runs)
    return nothing_behind(asked) | asked.among({behind})


def always_behind_each(asked: Asked) -> set[int]:
    """As nothing_behind(), with one more state behind each picture."""
    return nothing_behind(asked) | asked.among({run.end + 1 for run in asked.runs})


def as_planned(asked: Asked) -> set[int]:
    """Return the positions planned by the engine."""
    found = plan_checkpoints(
        asked.tokens, asked.cached, asked.match, (), (), asked.message_end, asked.runs
    )
    return {planned.position for planned in found}


RULES: dict[str, Rule] = {
    "no tails": nothing_behind,
    "second sight": at_second_sight,
    "last picture": always_behind_the_last,
    "each picture": always_behind_each,
    "engine": as_planned,
}


@dataclass
class Figures:
    """Counts of one trace and rule. prompt, hit: tokens. pictures, encodes: of all prompts. states,
    pages: most of them in the tree at a time. kept: states kept, evicted ones included."""

    prompt: int = 0
    hit: int = 0
    pictures: int = 0
    encodes: int = 0
    states: int = 0
    pages: int = 0
    kept: int = 0


class Rows:
    """The rows of pictures within a budget of tokens, the least recently used out first."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens
        self._held: OrderedDict[int, int] = OrderedDict()

    def encoded(self, picture: int, tokens: int) -> bool:
        """Use a picture's rows. Return True if they had to be encoded."""
        if picture in self._held:
            self._held.move_to_end(picture)
            return False
        self._held[picture] = tokens
        self._left -= tokens
        while self._left < 0:
            self._left += self._held.popitem(last=False)[1]
        return True


def play(trace: Questions, rule: Rule, slabs: int) -> Figures:
    """Play a trace. slabs: size of the arena."""
    tree = PrefixCache(
        TreeConfig(
            slabs=slabs,
            blocks_per_slab=PAGES_PER_SLAB * 8,
            pages_per_slab=PAGES_PER_SLAB,
            policy="lru",
            attention_cost=3e-5,
        )
    )
    figures, rows = Figures(), Rows(ROW_TOKENS)
    for question in trace:
        _answer(tree, question, rule, rows, figures)
        stats = tree.stats()
        figures.states = max(figures.states, stats.checkpoints)
        figures.pages = max(figures.pages, stats.pages.tree)
    return figures


def _answer(
    tree: PrefixCache, question: Question, rule: Rule, rows: Rows, figures: Figures
) -> None:
    prompt = question.prompt
    runs = [PictureRun(start, 1, tokens) for start, tokens, _ in question.pictures]
    whole = len(prompt) + len(question.answer)
    allocation = tree.allocate(Keys(prompt), capacity_tokens=whole, working_slots=1)
    assert allocation is not None
    match, cached = allocation.match, allocation.cached_tokens
    figures.prompt += len(prompt)
    figures.hit += match.usable_tokens
    for start, tokens, name in question.pictures:
        figures.pictures += 1
        figures.encodes += start + tokens > cached and rows.encoded(name, tokens)
    end = len(prompt) - question.opening if question.opening else None
    for place in sorted(rule(Asked(len(prompt), cached, match, runs, end))):
        slot = tree.take_checkpoint_slot(allocation)
        if slot is not None:
            figures.kept += 1
            kind = CheckpointKind.MESSAGE_END if place == end else CheckpointKind.PROMPT_END
            tree.insert_midway(allocation, place, slot, kind)
    tree.append(allocation, Keys(question.answer))
    slot = allocation.working_slots[0]
    tree.insert(allocation, whole - 1, slot, CheckpointKind.TURN_END, "end_of_turn")
    figures.kept += 1
    tree.release(allocation)


def slabs_of(trace: Questions) -> int:
    """Return the number of slabs for all pages and states of a trace."""
    questions = list(trace)
    pages = sum(len(each.prompt) + len(each.answer) for each in questions) // PAGE
    states = sum(4 + len(each.pictures) for each in questions)
    return (pages + states) // PAGES_PER_SLAB + states + 64


def measure(*, quick: bool) -> Document:
    """Play all traces with all rules."""
    results: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
    for name, trace in QUESTIONS.items():
        played = trace.shortened() if quick else trace
        whole = slabs_of(played)
        needed = play(played, nothing_behind, whole)
        small = int(SMALL * (needed.pages / PAGES_PER_SLAB + needed.states)) + 16
        results[name] = {
            arena: {rule: asdict(play(played, RULES[rule], slabs)) for rule in RULES}
            for arena, slabs in (("whole", whole), ("small", small))
        }
    return {"bench": "picture states", "row_tokens": ROW_TOKENS, "results": results}


def describe(run: Document) -> Section:
    """Return a stored run as a page's section."""
    table = []
    for name, arenas in run["results"].items():
        for arena, rules in arenas.items():
            base = Figures(**rules["no tails"])
            for rule, values in rules.items():
                each = Figures(**values)
                table.append(
                    [
                        *(name, arena, rule),
                        f"{each.hit / each.prompt:.3f}",
                        f"{each.encodes} of {each.pictures}",
                        f"{each.states - base.states:+d} to {base.states}",
                        f"{each.pages - base.pages:+d} to {base.pages}",
                        str(each.kept),
                    ]
                )
    columns = ("trace", "arena", "rule", "hit tokens", "encodes", "states", "pages", "kept")
    lines = [
        f"`bench/cache/picture_states.py`; rows of {run['row_tokens']} tokens. The small arena has",
        f"{SMALL:.0%} of the bytes needed by all.",
        "",
        *markdown_table(columns, table),
    ]
    return Section("States behind pictures", "\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer documents")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    host = describe_host(torch.device("cpu"), "")
    run = {**measure(quick=options.quick), "host": asdict(host)}
    out = RunFile.of(options.output / "picture_states.jsonl", f"{host.date}, {host.commit}")
    out.keep(run, describe)
    print(describe(run).body)


if __name__ == "__main__":
    main()
