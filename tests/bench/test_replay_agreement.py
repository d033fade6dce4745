"""The tree against an independent simulator of the same traces, under the same rules."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasuki.bench.replay.player import ends_and_branches
from tasuki.bench.replay.replay import replay
from tasuki.bench.replay.trace import load_trace

SHARED = Path(__file__).parents[3] / "shared"
SIMULATOR = SHARED / "peers" / "hit_rate_sim.py"
ONE_POINT = 0.01


@pytest.mark.parametrize(
    ("trace", "gib"),
    [("mooncake_conversation_dev", 16), ("mooncake_synthetic_dev", 64), ("claude_code_dev", 32)],
)
def test_lru_agrees_with_the_simulator_within_one_point(
    trace: str, gib: int, tmp_path: Path
) -> None:
    """Compare with marconi-a0, ordered by the recency of the used state alone, as `lru` is here."""
    file = SHARED / "traces" / f"{trace}.jsonl.zst"
    for needed in (SIMULATOR, file):
        if not needed.is_file():
            pytest.skip(f"{needed} is not there")
    out = tmp_path / "rows.json"
    command = [sys.executable, str(SIMULATOR), str(file), "--gb", str(gib), "--limit", "1200"]
    command += ["--policies", "c.marconi-a0", "--json", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    (simulated,) = [row for row in json.loads(out.read_text())["rows"] if row[1] == "c.marconi-a0"]

    read = load_trace(file, 1200)
    ours = replay(read, "35b-a3b", gib, "lru", ends_and_branches(read))
    assert ours["token_hit"] > 0.01
    assert ours["token_hit"] == pytest.approx(simulated[2], abs=ONE_POINT)
    assert ours["flops_saved"] == pytest.approx(simulated[3], abs=ONE_POINT)
