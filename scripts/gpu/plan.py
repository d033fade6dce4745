"""The list of checks needing a GPU, in order of their importance: tests first, then figures.

Pure values. A figure is a file written by `tasuki bench`, named like in docs/results.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from .run import Run

_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark")
_BENCH = ("-m", "tasuki.cli.main", "bench")


@dataclass(frozen=True)
class Plan:
    """The commands to run. results: folder for the figures. commit: commit of the source, if it is
    not a git tree. arena_mib: arena of each node in the serving figures, MiB."""

    results: Path
    commit: str
    arena_mib: int

    def runs(self) -> list[Run]:
        return [*_tests(), *self._pairs(), *self._steps(), *self._ranks()]

    def _pairs(self) -> list[Run]:
        """Return the serving runs with a prefill and a decode node on two GPUs, and with one node
        on one GPU."""
        arena = f"--arena-mib {self.arena_mib}"
        alone = ("--node-flags", f"--device cuda:0 {arena}")
        one = ("--agents", *alone)
        decode = ("--pair", "--node-flags", f"--device cuda:1 {arena}")
        prefill = f"--device cuda:0 {arena} --handover-bind 127.0.0.1:0"
        pair = (*decode, "--prefill-flags", prefill)

        def agents(name: str, gpus: int, sessions: int, flags: tuple[str, ...], warm: int) -> Run:
            words = f"serving --model 9b --clients 8 --sessions {sessions} --warm {warm}"
            more = (*flags, "--seed", str(sessions))
            return self._figure(name, gpus, 150, "two GPUs are worth two", words, *more)

        def answers(name: str, gpus: int, load: str, flags: tuple[str, ...]) -> Run:
            words = f"serving --model 9b --clients 8 {load}"
            return self._figure(name, gpus, 100, "an even pace", words, *flags)

        grown = "--input 64000 --sessions 16 --drafts 3 --seconds 60"
        words = f"serving --model 35b-a3b --quantization fp8 --clients 8 {grown}"
        published = self._figure("serving_gpu_published", 1, 220, "published shape", words, *one)
        # A pair has agents: each sends one request, all at once, of the size of a stream's.
        once = "--sessions 256 --turns 1 --warm 0 --prefix 0 --turn-tokens 512 --turn-answer 512"

        return [
            agents("serving_gpu_pair_agents64", 2, 64, pair, 3),
            agents("serving_gpu_agents64", 1, 64, one, 3),
            agents("serving_gpu_pair_agents128", 2, 128, pair, 3),
            agents("serving_gpu_agents128", 1, 128, one, 3),
            agents("serving_gpu_pair_agents32", 2, 32, pair, 3),
            agents("serving_gpu_pair_agents128_cold", 2, 128, pair, 0),
            agents("serving_gpu_pair_agents256", 2, 256, pair, 3),
            answers("serving_gpu_decode256", 1, "--streams 256 --seconds 15", alone),
            answers("serving_gpu_pair_decode256", 2, once, pair),
            published,
        ]

    def _steps(self) -> list[Run]:
        """Return the bench runs of whole models on one GPU."""
        drafted = "--kernels --points 1x8192,1x50000,16x8192,64x8192"
        both = "--quantization fp8 --kv-dtype fp8"
        large = f"{both} --alone --kernels --arena-mib 8192 --max-batch 4 --points 4x50000"
        drafted_fp8 = f"{both} --alone --speculate mtp --points 1x50000,16x8192"
        experts_drafted = "--model 35b-a3b --speculate mtp --points 1x8192,64x8192"
        wide = "--arena-mib 16000 --kernels --points 1x50000,16x8192"
        experts_fp8 = "--model 35b-a3b --quantization fp8 --kernels"
        nvfp4 = "--model 35b-a3b --quantization nvfp4 --alone --kernels --points 16x8192"
        coded = "--families attention,products"
        figure = self._figure
        return [
            figure("speculation", 1, 220, "drafts", f"decode --speculate mtp {drafted}"),
            figure("speculation_35b", 1, 220, "drafts", f"decode {experts_drafted} --kernels"),
            figure("gpu_decode_fp8", 1, 130, "FP8 and its rows", f"decode {both} --kernels"),
            figure("gpu_prefill_fp8", 1, 110, "FP8 prompts", f"prefill {both}"),
            figure("gpu_kernels_fp8_rows", 1, 80, "turned codes", f"kernels {coded}"),
            figure("speculation_fp8", 1, 100, "FP8 and drafts", f"decode {drafted_fp8}"),
            figure("gpu_tiers", 1, 150, "host memory below a GPU", "tiers"),
            figure("gpu_decode_35b_fp8", 1, 150, "experts", f"decode {experts_fp8}"),
            figure("gpu_prefill_35b", 1, 120, "experts", "prefill --model 35b-a3b " + both),
            figure("gpu_decode_35b_nvfp4", 1, 70, "NVFP4", f"decode {nvfp4}"),
            figure("gpu_decode_122b", 1, 150, "122B alone", f"decode --model 122b-a10b {large}"),
            figure("gpu_decode_27b", 1, 120, "27B's floor", "decode --model 27b " + wide),
            figure("gpu_decode", 1, 90, "no row lost", "decode --peer"),
            figure("gpu_prefill", 1, 90, "no row lost", "prefill --peer"),
            figure("gpu_kernels", 1, 150, "no row lost", "kernels"),
        ]

    def _ranks(self) -> list[Run]:
        """Return the bench runs of models shared by two GPUs (tensor parallel)."""
        small = "decode --tensor-parallel 2 --points 1x50000,64x8192"
        large = "--model 27b --tensor-parallel 2 --arena-mib 16000"
        experts = "decode --model 35b-a3b --tensor-parallel 2 --points 1x50000"
        largest = "--model 122b-a10b --tensor-parallel 2 --alone --arena-mib 8192 --max-batch 16"
        nodes = "transfer --tensor-parallel 2 --parts nodes"
        figure = self._figure
        return [
            figure("gpu_collectives", 2, 140, "all-reduce", "collectives --seconds 60"),
            figure("gpu_decode_tp2", 2, 140, "ranks", small),
            figure("gpu_decode_27b_tp2", 2, 150, "ranks", f"decode {large} --points 1x50000"),
            figure("gpu_decode_35b_tp2", 2, 150, "ranks", experts),
            figure(
                "gpu_decode_122b_tp2", 2, 200, "ranks", f"decode {largest} --points 1x50000,16x8192"
            ),
            figure("gpu_prefill_27b_tp2", 2, 240, "ranks", f"prefill {large}"),
            figure("gpu_transfer_ranks", 2, 200, "hand-overs of ranks", nodes),
        ]

    def _figure(
        self, name: str, gpus: int, seconds: float, decides: str, words: str, *more: str
    ) -> Run:
        out = ("--out", str(self.results / f"{name}.json"))
        commit = ("--commit", self.commit) if self.commit else ()
        argv = (*_BENCH, *shlex.split(words), *more, *out, *commit)
        return Run(name, gpus, seconds, decides, argv, is_timed=True)


def _tests() -> list[Run]:
    def tests(name: str, gpus: int, seconds: float, decides: str, words: str, *files: str) -> Run:
        paths = [f"tests/gpu/test_{file}.py" for file in files]
        return Run(f"tests_{name}", gpus, seconds, decides, (*_PYTEST, *shlex.split(words), *paths))

    whole = ("gpu_engine_goldens", "gpu_engine", "gpu_runner", "gpu_bf16", "gpu_daemons")
    drafts = ("gpu_guesses", "gpu_drafts", "gpu_draft_entries")
    draws = ("gpu_adjusted_draws", "gpu_choices_and_scores", "gpu_early_step")
    return [
        tests("kernels", 1, 300, "every kernel is its twin", "-n 6 tests/kernels"),
        tests("engines", 1, 200, "goldens", "-n 4", *whole),
        tests("drafts", 1, 330, "auto drafts by the layer", "-n 3", *drafts),
        tests(
            "quantised",
            1,
            150,
            "FP8, NVFP4, FP8 KV, spans",
            "-n 2",
            "gpu_fp8",
            "gpu_fp8_kv",
            "gpu_fp8_rows",
            "gpu_fp8_steps",
            "gpu_prompts",
            "gpu_spans",
        ),
        tests("tiers", 1, 250, "memory and a disk below a GPU", "-n 2", "gpu_tiers", "gpu_copies"),
        tests("remote", 1, 120, "a remote store below a GPU", "", "gpu_remote"),
        tests("draws", 1, 90, "samplers, early steps", "-n 3", *draws),
        tests("pictures", 1, 240, "pictures and towers", "-n 6", "gpu_pictures", "gpu_towers"),
        tests("peer_copy", 2, 120, "hand-over", "", "peer_copy"),
        tests("ranks", 2, 240, "nodes of two ranks", "-n 2", "gpu_ranks"),
    ]
