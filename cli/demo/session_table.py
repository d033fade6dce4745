"""The table of a session, a row a turn, from the usage that the server reported.

Pure functions of usage objects: the table prints the client's usages and measures nothing.
"""

from collections.abc import Sequence

from tasuki.engine.messages import TransferReport, Usage
from tasuki.pycache.layout import PAGE_TOKENS

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


NEW = "new"
"""The cause of tokens that nobody computed before: they are not lost."""
COLUMNS = {
    "turn": 4,
    "prompt": 7,
    "KV-cached": 9,
    "usable": 7,
    NEW: 6,
    "first token": 11,
    "handed over": 11,
    "pages sent": 10,
    "hidden": 6,
    "tokens/s": 8,
    "drafts held": 11,
}
"""Widths by title."""
LAST_TITLE = "lost and why"


def header() -> str:
    cells = [f"{title:>{width}}" for title, width in COLUMNS.items()]
    return "  ".join([*cells, LAST_TITLE])


def row(turn: str, usage: Usage) -> str:
    """One turn. A dash stands where nothing was measured."""
    hit = usage.hit
    texts = (
        turn,
        str(usage.prompt_tokens),
        "-" if hit is None else str(hit.kv_tokens),
        "-" if hit is None else str(hit.usable_tokens),
        "-" if hit is None else str(hit.causes.get(NEW, 0)),
        f"{usage.time_to_first_token * 1000:.0f} ms",
        handed_over(usage.transfer),
        pages_sent(usage),
        hidden_share(usage.transfer),
        decode_rate(usage),
        drafts_held(usage),
    )
    cells = [f"{text:>{width}}" for text, width in zip(texts, COLUMNS.values(), strict=True)]
    return "  ".join([*cells, lost(usage)])


def lost(usage: Usage) -> str:
    """Prompt tokens that were computed again, by cause, most first; flags a lost hand-over."""
    causes = {} if usage.hit is None else usage.hit.causes
    parts = [
        f"{cause} {count}"
        for cause, count in sorted(causes.items(), key=lambda item: (-item[1], item[0]))
        if count and cause != NEW
    ]
    if usage.local_fallback:
        parts.append("(hand-over lost, prefilled here)")
    return ", ".join(parts) or "none"


def handed_over(transfer: TransferReport | None) -> str:
    """Bytes in binary units with three significant digits, or a dash."""
    if transfer is None:
        return "-"
    value, unit = float(transfer.bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def pages_sent(usage: Usage) -> str:
    """Of the prompt's pages those that the hand-over brought: the others were there."""
    if usage.transfer is None:
        return "-"
    return f"{usage.transfer.pages} of {_pages(usage)}"


def hidden_share(transfer: TransferReport | None) -> str:
    """Which part of the transfer ran beside the forward, or a dash where none took time."""
    if transfer is None:
        return "-"
    whole = transfer.hidden_seconds + transfer.exposed_seconds
    return f"{transfer.hidden_seconds / whole:.0%}" if whole > 0 else "-"


def decode_rate(usage: Usage) -> str:
    """Tokens a second after the first, or a dash for answers of one token."""
    seconds = usage.seconds - usage.time_to_first_token
    if usage.completion_tokens < 2 or seconds <= 0:
        return "-"
    return f"{(usage.completion_tokens - 1) / seconds:.1f}"


def drafts_held(usage: Usage) -> str:
    """Drafts that were the answer's, of all that were verified, or a dash without any."""
    if not usage.drafted_tokens:
        return "-"
    return f"{usage.accepted_tokens} of {usage.drafted_tokens}"


def drafts(usages: Sequence[Usage]) -> str:
    """A sentence on the drafts of a whole session."""
    drafted = sum(usage.drafted_tokens for usage in usages)
    if not drafted:
        return "No token of the answers was drafted."
    accepted = sum(usage.accepted_tokens for usage in usages)
    tokens = sum(usage.completion_tokens for usage in usages)
    return (
        f"{accepted} of {drafted} drafted tokens held ({accepted / drafted:.0%}): "
        f"{tokens} tokens in {tokens - accepted} forwards."
    )


def hand_overs(usages: Sequence[Usage]) -> str:
    """Sentences on the hand-overs of a whole session: what they brought, and what they saved."""
    handed = [(usage, usage.transfer) for usage in usages if usage.transfer is not None]
    if not handed:
        return "Nothing was handed over."
    prompt = sum(usage.prompt_tokens for usage, _ in handed)
    usable = sum(0 if usage.hit is None else usage.hit.usable_tokens for usage, _ in handed)
    sent, pages = sum(found.pages for _, found in handed), sum(_pages(usage) for usage, _ in handed)
    hidden = sum(found.hidden_seconds for _, found in handed)
    whole = hidden + sum(found.exposed_seconds for _, found in handed)
    beside = f", {hidden / whole:.0%} of the time beside the forward" if whole > 0 else ""
    return (
        f"{len(handed)} prompts of {prompt} tokens were handed over, none of which the decode node "
        f"computed. The prefill node computed {prompt - usable}: of {usable} it had KV and state.\n"
        f"{sent} of {pages} pages were sent{beside}: the decode node kept the others."
    )


def _pages(usage: Usage) -> int:
    return -(-usage.prompt_tokens // PAGE_TOKENS)
