"""The replays' rows as a Markdown table."""

from typing import Any

from cells import DRAFTING_POLICY, MODEL, POLICIES

_CAUSES = ("new", "never_checkpointed", "checkpoint_evicted", "kv_evicted")


def table(
    rows: list[dict[str, Any]], agreement: list[dict[str, Any]], drafting: list[dict[str, Any]]
) -> str:
    """`agreement`: shares of ours and of the simulator, under the same rules; `drafting`: rows of
    a cache that keeps a draft layer's entries."""
    by_cell: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault((_name(row["trace"]), row["gb"]), {})[row["policy"]] = row
    lines = [
        "# Hit rate on traces",
        "",
        f"`make bench-traces`, {MODEL}: share of prefill FLOPs saved (of prompt tokens). Replayed "
        "through the C++ tree; the columns in brackets are another simulator's, quoted.",
        "",
        _line("trace, budget", "[SGLang-like]", "[Marconi 0.5]", *POLICIES, "target", "stretch"),
        _line(*["---"] * (5 + len(POLICIES))),
    ]
    for (trace, gib), policies in by_cell.items():
        cell = policies["auto"]["cell"]
        lines.append(
            _line(
                f"{trace}, {gib:g} GB",
                *(f"{cell[key]:.3f}" for key in ("sglang_like", "marconi_quoted")),
                *(_shares(policies[name]) for name in POLICIES),
                *(f"{cell[key]:.2f}" for key in ("target", "stretch")),
            )
        )
    lines += _drafting({key: cell[DRAFTING_POLICY] for key, cell in by_cell.items()}, drafting)
    lines += ["", "Where the prompt tokens went, policy auto:", ""]
    lines += [_line("trace, budget", "usable", *_CAUSES), _line(*["---"] * (2 + len(_CAUSES)))]
    for (trace, gib), policies in by_cell.items():
        row = policies["auto"]
        shares = [f"{share:.3f}" for share in (row["token_hit"], *_of(row["causes"], _CAUSES))]
        lines.append(_line(f"{trace}, {gib:g} GB", *shares))
    lines += ["", "Requests a second, the tree's calls and their Python callers on one core:", ""]
    lines += [_line("trace, budget", *POLICIES), _line(*["---"] * (1 + len(POLICIES)))]
    for (trace, gib), policies in by_cell.items():
        speeds = [f"{policies[name]['requests_per_second']:.0f}" for name in POLICIES]
        lines.append(_line(f"{trace}, {gib:g} GB", *speeds))
    lines += ["", "![FLOPs saved](traces.svg)", ""]
    return "\n".join(lines + _agreement(agreement))


def _drafting(
    without: dict[tuple[str, float], dict[str, Any]], drafting: list[dict[str, Any]]
) -> list[str]:
    """What entries of a draft layer cost in the same bytes: fewer pages and states fit."""
    if not drafting:
        return []
    lines = [
        "",
        f"`--draft-layer auto`, policy {DRAFTING_POLICY}: pages with the draft layer's entries, "
        "states with what it carries, in the same bytes.",
        "",
        _line("trace, budget", "off", "auto", "points of FLOPs"),
        _line(*["---"] * 4),
    ]
    for row in drafting:
        off = without[_name(row["trace"]), row["gb"]]
        points = 100 * (row["flops_saved"] - off["flops_saved"])
        cell = f"{_name(row['trace'])}, {row['gb']:g} GB"
        lines.append(_line(cell, _shares(off), _shares(row), f"{points:+.1f}"))
    return lines


def _agreement(agreement: list[dict[str, Any]]) -> list[str]:
    if not agreement:
        return []
    lines = [
        "An independent simulator under the same rules: states at answers' ends and branch points "
        "in whole blocks, least recently used first. FLOPs saved (of prompt tokens):",
        "",
        _line("trace, budget", "lru", "simulator"),
        _line("---", "---", "---"),
    ]
    for row in agreement:
        pairs = zip(row["flops_saved"], row["token_hit"], strict=True)
        shares = [f"{flops:.4f} ({tokens:.4f})" for flops, tokens in pairs]
        lines.append(_line(f"{_name(row['trace'])}, {row['gb']:g} GB", *shares))
    return [*lines, ""]


def _shares(row: dict[str, Any]) -> str:
    return f"{row['flops_saved']:.3f} ({row['token_hit']:.3f})"


def _of(values: dict[str, float], names: tuple[str, ...]) -> list[float]:
    return [values.get(name, 0.0) for name in names]


def _name(trace: str) -> str:
    return trace.split(".")[0]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
