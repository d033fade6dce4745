"""A replacement for vLLM's `tests/conftest.py`: a test using vLLM's own code fails, never
passes."""

from collections.abc import Generator
from typing import Any

import pytest
from vllm import uses

_LONG_TESTS = {"test_openapi_stateless": 1500}
"""Longer time limits, in seconds, of tests sending requests to every route."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        seconds = _LONG_TESTS.get(item.name.partition("[")[0])
        if seconds is not None:
            item.add_marker(pytest.mark.timeout(seconds))
            # schemathesis 4.32 uses pytest's name from before 9.2.
            vars(item)["_nodeid"] = item.nodeid


def pytest_configure(config: pytest.Config) -> None:
    for mark in ("skip_global_cleanup", "slow_test", "core_model", "cpu_test", "optional"):
        config.addinivalue_line("markers", f"{mark}: vLLM's own")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    uses.running = []
    try:
        return (yield)
    finally:
        uses.running = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call" and report.passed and uses.running:
        report.outcome = "failed"
        report.longrepr = f"InternalOfVllm: the test uses vLLM's own {uses.running[0]}"
    return report
