"""Rows of a report for the kernels of a step or a prompt, the longest first."""

from collections.abc import Sequence

from tasuki.bench.measure.report import Report, Row

from .gpu_timeline import Work, kernel_times

_LEAST_SHARE = 0.01
"""Of all kernels, that one is named for."""


def add_kernels(report: Report, name: str, work: Sequence[Work], times: int) -> None:
    """Add a row for each kernel that counts.

    name: of the step or the prompt, which was run so many times."""
    found = kernel_times(work, times)
    whole = sum(kernel.seconds for kernel in found)
    for kernel in found:
        if kernel.seconds >= _LEAST_SHARE * whole:
            extra = {"launches a step": kernel.launches, "% of all": 100 * kernel.seconds / whole}
            report.add(Row(f"{name}: {kernel.name}", kernel.seconds, extra=extra))
