"""What a change of the cache costs a match and an allocation: two commits, in turn in one process.

Usage: paired.py --before COMMIT [--after COMMIT] [--trees N]. Builds both (cmake, under build/).
Without tiers. A round runs each build twice, A B B A, over the same prompts, for milliseconds each,
so that whatever else the machine does falls on both; every ROUNDS_A_TREE rounds each has a new
tree, since where its nodes happen to lie is worth a percent or two. Printed is the median over
trees of after / before in CPU time of the thread, and between what bounds it lies for 95 of 100
resamples of the trees.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
from pathlib import Path

import numpy as np
from workloads import PAGE, prompt

ROOT = Path(__file__).resolve().parents[2]
ROUNDS_A_TREE = 10
_BATCH_TOKENS = 16 * PAGE * 200
"""Of prompts that a build runs before it is the other one's turn."""
WORKS = {"16 pages, 400 prompts": (16, 400), "2 pages, 20000 prompts": (2, 20_000)}
"""Pages of a prompt, and how many the cache holds."""


class Build:
    """A commit's cache, loaded beside another one's."""

    def __init__(self, library: Path) -> None:
        # Symbols of the two are apart: each is linked to itself, and is nobody else's.
        self._calls = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._calls.tasuki_open.argtypes = [pointer, number, number]
        self._calls.tasuki_open.restype = pointer
        self._calls.tasuki_run.argtypes = [pointer, number, number]
        self._calls.tasuki_run.restype = number
        self._calls.tasuki_close.argtypes = [pointer]

    def open(self, tokens: "np.ndarray[tuple[int, int], np.dtype[np.int32]]") -> int:
        return int(self._calls.tasuki_open(tokens.ctypes.data, *tokens.shape))

    def run(self, tree: int, first: int, count: int) -> int:
        spent = int(self._calls.tasuki_run(tree, first, count))
        assert spent >= 0, "a prompt was not in the cache"
        return spent

    def close(self, tree: int) -> None:
        self._calls.tasuki_close(tree)


def built(commit: str) -> Build:
    """`.` stands for the working tree."""
    name = commit
    if commit != ".":
        found = ["git", "-C", str(ROOT), "rev-parse", "--verify", f"{commit}^{{commit}}"]
        name = subprocess.run(found, check=True, capture_output=True, text=True).stdout.strip()
    folder = ROOT / "build" / "paired" / ("tree" if commit == "." else name)
    source, objects = ROOT / "cpp_cache", folder / "objects"
    folder.mkdir(parents=True, exist_ok=True)
    if commit != ".":
        packed = subprocess.run(
            ["git", "-C", str(ROOT), "archive", name, "cpp_cache"], check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
        source = folder / "cpp_cache"
    setup = ["cmake", "-S", source, "-B", objects, "-DCMAKE_BUILD_TYPE=Release"]
    hidden = "-DCMAKE_CXX_FLAGS=-fvisibility=hidden -fno-gnu-unique"
    subprocess.run([*map(str, setup), hidden], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["cmake", "--build", str(objects), "--target", "cpp_cache"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    library = folder / "paired.so"
    compiler = ["c++", "-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden"]
    flags = ["-fno-gnu-unique", "-Wl,-Bsymbolic", "-Wl,--exclude-libs,ALL", "-I", str(source)]
    files = [str(Path(__file__).with_suffix(".cpp")), str(objects / "libcpp_cache.a")]
    subprocess.run([*compiler, *flags, *files, "-ldl", "-o", str(library)], check=True)
    return Build(library)


def ratios(before: Build, after: Build, pages: int, count: int, trees: int) -> list[list[float]]:
    """After / before of each round, by tree."""
    rows = np.stack([prompt(50_000 + i, pages * PAGE + 1) for i in range(count)])
    batch = min(count, max(1, _BATCH_TOKENS // (pages * PAGE)))
    found = []
    for number in range(trees):
        # Whichever is made first has the nicer memory.
        order = [before, after] if number % 2 else [after, before]
        held = {build: build.open(rows) for build in order}
        for build in order:
            build.run(held[build], 0, count)
        of_a_tree = []
        for step in range(ROUNDS_A_TREE):
            first = step * batch % (count - batch + 1)
            spent = {before: 0, after: 0}
            for build in (order[0], order[1], order[1], order[0]):
                spent[build] += build.run(held[build], first, batch)
            of_a_tree.append(spent[after] / spent[before])
        for build in order:
            build.close(held[build])
        found.append(of_a_tree)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", required=True, help="a commit")
    parser.add_argument("--after", default=".", help="a commit; the working tree by default")
    parser.add_argument("--trees", type=int, default=60)
    options = parser.parse_args()
    before, after = built(options.before), built(options.after)
    random = np.random.default_rng(1)
    for name, (pages, count) in WORKS.items():
        trees = ratios(before, after, pages, count, options.trees)
        medians = np.array([statistics.median(of_a_tree) for of_a_tree in trees])
        again = np.median(random.choice(medians, (2000, len(medians))), axis=1)
        low, high = np.percentile(again, [2.5, 97.5]).tolist()
        row = {"after / before": round(float(np.median(medians)), 4), "trees": len(trees)}
        print(json.dumps({name: {**row, "from": round(low, 4), "to": round(high, 4)}}))


if __name__ == "__main__":
    main()
