"""`python -m scripts.sanitize`: runs the C++ part under ASan and UBSan, in a separate build.

Its unit tests run first. Then come, in Python, random calls to the binding and random calls to the
prefix tree with its oracle, each round with its own seed. Exit status 1 on the first report. The
seed is random and printed.
"""

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

from scripts.common.package_copy import CPP_TESTS, PackageCopy

_ROOT = Path(__file__).parents[1]
_BUILD_SECONDS = 900.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.sanitize", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="once all is built")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"sanitize: seed {seed}", flush=True)
    copy = PackageCopy(_ROOT, _ROOT / "build" / "sanitize")
    if not (copy.configure("-DTASUKI_SANITIZE=address,undefined") and copy.build()):
        return _failed(copy, "the build")
    if copy.run((str(copy.cpp_build / CPP_TESTS),), _BUILD_SECONDS) != 0:
        return _failed(copy, "the unit tests")
    print("unit tests: no report", flush=True)
    seconds = {
        ("bench.cache.fuzz",): options.seconds / 4,
        ("scripts.chaos", "tree"): options.seconds / 2,
    }
    for module, share in seconds.items():
        begun = time.monotonic()
        command = (
            *(sys.executable, "-m", *module),
            *("--seconds", str(share), "--seed", str(seed)),
        )
        # Longer than its share: a begun round runs to its end, and a sanitizer with the memory of
        # all rounds is slow.
        if copy.run(command, 3 * share + 300.0, _preloaded()) != 0:
            return _failed(copy, " ".join(module))
        last = copy.log.read_text(errors="replace").splitlines()[-1:]
        print(
            f"{' '.join(module)}, {time.monotonic() - begun:.0f} s: no report; {' '.join(last)}",
            flush=True,
        )
    print(f"sanitize: nothing found, seed {seed}", flush=True)
    return 0


def _preloaded() -> dict[str, str]:
    """Return the environment variables preloading the sanitizers' runtimes. Python itself is not
    sanitized: the runtimes are loaded before it, and its leaks are ignored."""
    libraries = [_library(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
    return {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }


def _library(name: str) -> str:
    done = subprocess.run(
        ("c++", f"-print-file-name={name}"), check=True, stdout=subprocess.PIPE, text=True
    )
    return str(Path(done.stdout.strip()).resolve())


def _failed(copy: PackageCopy, what: str) -> int:
    print(copy.log.read_text(errors="replace")[-6000:])
    print(f"sanitize: {what} failed; all of it is in {copy.log}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
