"""Flags common to all of `tasuki bench`, the engine config made from them, and the measured formats
of weights and KV."""

import gc
from dataclasses import dataclass, replace

import torch

from tasuki.bench.measure.report import Report, Row, reported
from tasuki.bench.measure.results import OUT
from tasuki.engine.assembly.memory_plan import MIB, MemoryPlan
from tasuki.engine.config import EngineConfig, Role
from tasuki.model.config import ModelConfig
from tasuki.model.families.registry import published_or_folder
from tasuki.model.quantise.format_names import SERVED_ON_GPUS
from tasuki.utils.options import Auto, option

from .errors import BenchError


@dataclass(frozen=True)
class StoredForm:
    """Formats of one measured engine. quantization: format of the weights; "": the engine's dtype.
    kv_dtype: dtype of keys and values, by its name in `tasuki serve`; "": the engine's dtype."""

    quantization: str = ""
    kv_dtype: str = ""

    @property
    def name(self) -> str:
        pages = f"{self.kv_dtype} KV" if self.kv_dtype else ""
        return ", ".join(filter(None, (self.quantization, pages)))

    @property
    def is_plain(self) -> bool:
        return self == StoredForm()

    def row(self, row: Row, plain: float | None) -> Row:
        """Return the row with the format in its name and without the targets of plain rows. plain:
        seconds of the same work in the plain format, added for comparison; None: unknown. For the
        plain format the row is returned unchanged."""
        if self.is_plain:
            return row
        others = {} if plain is None else {"plain": plain}
        name = f"{self.name}: {row.name}"
        return replace(row, name=name, target="", met=None, others={**row.others, **others})


def free_memory(device: torch.device) -> None:
    """Free the memory of an unreferenced engine on the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


_LEFT_BY_THE_FIRST = 4 * 2**30
PLAIN = StoredForm()


@dataclass(frozen=True)
class BenchConfig:
    model: str = option("9b", "a published name, or a folder with a config.json")
    device: str = option("cuda", "where to measure", ("cuda", "cpu"))
    dtype: str = option("bfloat16", "as of tasuki serve", ("float32", "bfloat16"))
    ssm_dtype: str = option("float32", "as of tasuki serve", ("float32", "bfloat16"))
    arena_mib: int | Auto = option(Auto.AUTO, "as of tasuki serve")
    max_batch: int = option(64, "as of tasuki serve")
    prefill_chunk_tokens: int = option(8192, "as of tasuki serve")
    quantization: str = option(
        "",
        "measure with weights in this format too, in the same run as plain ones",
        ("", *SERVED_ON_GPUS),
    )
    kv_dtype: str = option(
        "",
        "measure with keys and values as FP8 rows too, beside those weights, in the same run as "
        "plain ones",
        ("", "fp8"),
    )
    step_activations: str = option("auto", "as of tasuki serve", ("auto", "bf16", "fp8"))
    attention_split: str = option("auto", "as of tasuki serve", ("auto", "shares", "spans"))
    tensor_parallel: int = option(
        1, "measure so many ranks too, a GPU each, in the same run as one", aliases=("--tp-size",)
    )
    alone: bool = option(
        False, "measure what the three before this ask for alone, where one GPU holds no plain one"
    )
    out: str = option("", OUT)
    commit: str = option("", "of the source, where it is no git tree")

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def reported(self, bench: str) -> Report:
        """Measure the device's floors, print the report's head, and return the report. Raises
        BenchError if there are fewer GPUs than needed."""
        needed = self.tensor_parallel if self.device == "cuda" else 0
        if torch.cuda.device_count() < needed:
            raise BenchError(
                f"{needed} GPU{'s are' if needed > 1 else ' is'} to be measured, and "
                f"{torch.cuda.device_count()} are here: give --device cpu"
            )
        return reported(bench, self.torch_device, self.torch_dtype, self.commit, self.out)

    def model_config(self) -> ModelConfig:
        """Return the model's config. Raises ModelConfigError."""
        return published_or_folder(self.model)

    @property
    def asked_form(self) -> StoredForm:
        return StoredForm(self.quantization, self.kv_dtype)

    @property
    def forms(self) -> list[StoredForm]:
        """Return the formats measured with one rank, in order of measurement; perhaps none."""
        asked = self.asked_form
        if self.alone and self.tensor_parallel > 1:
            return []
        return [asked] if self.alone or asked.is_plain else [StoredForm(), asked]

    def engine_config(
        self, form: StoredForm = PLAIN, *, speculate: str = "off", draft_tokens: int = 1
    ) -> EngineConfig:
        """Return the engine's config for the format `form`. Raises EngineConfigError,
        ModelConfigError."""
        config = self._engine(self.arena_mib)
        kv_dtype = form.kv_dtype or config.kv_dtype
        config = replace(config, kv_dtype=kv_dtype, speculate=speculate, draft_tokens=draft_tokens)
        if self.device == "cpu" or not isinstance(self.arena_mib, Auto):
            return config
        # Plan with the whole GPU: memory used by the floors' measurement is free again by then.
        return replace(config, arena_mib=self._plan(config, form).arena // MIB)

    def of_ranks(self) -> EngineConfig:
        """Return the engine config of a node with tensor_parallel ranks. Each rank plans its own
        GPU's memory."""
        return replace(
            self._engine(self.arena_mib), speculate="off", tensor_parallel=self.tensor_parallel
        )

    def drafting_model(self, engine: EngineConfig) -> ModelConfig:
        """Return the model's config, with a draft layer if the engine drafts by one. Raises
        ModelConfigError."""
        return replace(self.model_config(), draft_layers=int(engine.drafts_by_layer))

    def engine_config_of_two(self) -> EngineConfig:
        """Return one config for both of two engines sharing a GPU and the weights; one engine has a
        draft layer. Raises the errors of engine_config()."""
        if self.device == "cpu" or not isinstance(self.arena_mib, Auto):
            return self._engine(self.arena_mib)
        memory = torch.cuda.get_device_properties(0).total_memory
        model = replace(self.model_config(), draft_layers=1)
        plan = MemoryPlan.of(model, self._engine(self.arena_mib), memory, Role.FUSED)
        others = plan.beside - plan.weights - plan.context
        return self._engine((plan.arena - others) // 2 // MIB)

    def memory_note(self, engine: EngineConfig, form: StoredForm = PLAIN) -> str:
        """Return a note: the memory planned outside the arena, and the memory taken now. REQUIRES:
        a GPU."""
        plan = self._plan(engine, form)
        free, total = torch.cuda.mem_get_info()
        return (
            f"GPU memory beside the arena: {plan.beside / MIB:.0f} MiB planned, "
            f"{(total - free - plan.arena) / MIB:.0f} MiB taken"
        )

    def _plan(self, engine: EngineConfig, form: StoredForm) -> MemoryPlan:
        memory = torch.cuda.get_device_properties(0).total_memory
        # Memory kept by cuBLAS and cuDNN in the process after an earlier engine.
        memory -= _LEFT_BY_THE_FIRST if len(self.forms) > 1 else 0
        model = self.drafting_model(engine)
        return MemoryPlan.of(model, engine, memory, Role.FUSED, form.quantization)

    def _engine(self, arena_mib: int | Auto) -> EngineConfig:
        return EngineConfig(
            model=self.model,
            device=self.device,
            dtype=self.dtype,
            ssm_dtype=self.ssm_dtype,
            step_activations=self.step_activations,
            attention_split=self.attention_split,
            arena_mib=arena_mib,
            max_batch=self.max_batch,
            prefill_chunk_tokens=self.prefill_chunk_tokens,
            speculate="off",
        )
