"""`python -m scripts.suites`: classes of failures, the run's exit status, the reviewed tables."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.suites.__main__ import SUITES, TABLES, concluded
from scripts.suites.outcome import Outcome, Verdict, failures, read_lines
from scripts.suites.report import as_json, as_page, dumped
from scripts.suites.rules import BadRule, Rule, explain, read_rules, stale
from scripts.suites.suite_openresponses import read_log
from scripts.suites.suite_schemathesis import read_report

STAND_INS = Path(__file__).parents[2] / "scripts" / "suites" / "stand_ins"


def outcome(test: str, verdict: Verdict = "failed", message: str = "") -> Outcome:
    return Outcome("vllm", test, verdict, message)


def rule(*tests: str, says: str = "", kind: str = "model", sometimes: bool = False) -> Rule:
    return Rule("vllm", tests, says, kind, "It is so.", sometimes)  # type: ignore[arg-type]


def run_of(*outcomes: Outcome, rules: list[Rule], out: Path | None = None) -> int:
    """Return the exit status of a run with these outcomes."""
    explained = explain(failures(outcomes), rules)
    return concluded({"vllm": outcomes}, explained, stale(outcomes, rules), out)


def test_a_failure_has_the_first_rule_whose_pattern_and_words_fit() -> None:
    words = rule("a.py::*", says="no 'rid'")
    rules = [rule("a.py::test_x"), words, rule("*", says="no .rid.")]
    found = explain(
        [
            outcome("a.py::test_x[1]", message="no 'rid' here"),
            outcome("a.py::test_y", message="other"),
        ],
        rules,
    )
    assert [each.rule for each in found] == [words, None]


def test_brackets_of_a_name_are_themselves() -> None:
    assert rule("a.py::t[1-b]").names("a.py::t[1-b]")
    assert not rule("a.py::t[1-b]").names("a.py::t1")


def test_a_run_whose_failures_are_all_explained_passes() -> None:
    assert run_of(outcome("a"), outcome("b", "passed"), rules=[rule("a")]) == 0


def test_a_failure_without_a_rule_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_of(outcome("a", message="what came"), rules=[]) == 1
    assert "not classified: a: what came" in capsys.readouterr().out


def test_a_failure_of_ours_fails_the_run() -> None:
    assert run_of(outcome("a"), rules=[rule("a", kind="ours")]) == 1


def test_a_rule_whose_test_passes_now_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_of(outcome("a", "passed"), rules=[rule("a")]) == 1
    assert "explains nothing" in capsys.readouterr().out


def test_a_rule_is_not_stale_where_its_tests_did_not_run_or_the_model_decides() -> None:
    ran = [outcome("b", "passed"), outcome("c", "skipped"), outcome("d", "passed")]
    rules = [rule("a"), rule("c"), rule("d", sometimes=True)]
    assert stale(ran, rules) == []


def test_a_suite_that_ran_nothing_fails_the_run() -> None:
    assert run_of(rules=[]) == 1


def test_the_results_have_a_row_a_failure_and_the_page_a_row_a_function(tmp_path: Path) -> None:
    ran = [outcome("f::t[1]"), outcome("f::t[2]"), outcome("g", "passed"), outcome("h", "skipped")]
    out = tmp_path / "suites.json"
    assert run_of(*ran, rules=[rule("f::t*", kind="refused")], out=out) == 0
    results = json.loads(out.read_text())
    assert results["suites"]["vllm"] == {
        **{"run": 3, "passed": 1, "failed": 2, "skipped": 1},
        **{"ours": 0, "theirs": 0, "theirs (internal)": 0, "model": 0, "refused": 2},
    }
    assert [row["test"] for row in results["failures"]] == ["f::t[1]", "f::t[2]"]
    page = out.with_suffix(".md").read_text()
    assert "| `f::t` | 2 | refused | It is so. |" in page.splitlines()
    assert dumped(as_json({"vllm": ran}, [])) == dumped(as_json({"vllm": ran}, []))
    assert "No test failed." in as_page(as_json({"vllm": ran[2:]}, []))


def test_a_run_of_one_suite_keeps_the_rows_of_the_others(tmp_path: Path) -> None:
    out = tmp_path / "suites.json"
    before = {"vllm": [outcome("a")], "smg": [Outcome("smg", "b", "failed")]}
    rules = [rule("a"), rule("b")]
    explained = explain([each for ran in before.values() for each in ran], rules)
    assert concluded(before, explained, [], out) == 0
    assert run_of(outcome("c"), outcome("a", "passed"), rules=[rule("c")], out=out) == 0
    results = json.loads(out.read_text())
    assert [(row["suite"], row["test"]) for row in results["failures"]] == [
        ("vllm", "c"),
        ("smg", "b"),
    ]
    assert list(results["suites"]) == ["vllm", "smg"]


def test_many_functions_of_one_file_and_reason_are_a_row_of_the_page() -> None:
    many = [outcome(f"f.py::t{at}[{each}]") for at in range(5) for each in range(2)]
    explained = explain(many, [rule("f.py*")])
    page = as_page(as_json({"vllm": many}, explained)).splitlines()
    assert [line for line in page if line.startswith("| `")] == [
        "| `f.py::*` | 10 | model | It is so. |"
    ]


def test_a_page_s_table_bears_bars_and_lines_in_a_reason() -> None:
    explained = explain([outcome("a", message="one | two\nthree")], [])
    assert "one \\| two three" in as_page(as_json({"vllm": [outcome("a")]}, explained))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('tests = ["a"]\nclass = "model"\nreason = "No stop"', "full stop"),
        ('tests = ["a"]\nclass = "mine"\nreason = "So."', "`class` must be one of"),
        ('tests = "a"\nclass = "model"\nreason = "So."', "list of patterns"),
        ('tests = []\nclass = "model"\nreason = "So."', "list of patterns"),
        ('tests = ["a"]\nclas = "model"\nreason = "So."', "'clas' is no key"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_named(tmp_path: Path, table: str, words: str) -> None:
    (tmp_path / "vllm.toml").write_text(f"[[rule]]\n{table}\n")
    with pytest.raises(BadRule, match=words) as refused:
        read_rules(tmp_path, "vllm")
    assert "vllm.toml, rule 1" in str(refused.value)


@pytest.mark.parametrize("suite", SUITES)
def test_every_table_can_be_read_and_has_nothing_of_ours(suite: str) -> None:
    assert all(each.kind != "ours" for each in read_rules(TABLES, suite))


def test_the_later_line_of_a_test_counts(tmp_path: Path) -> None:
    lines = [
        {"test": "a", "outcome": "failed", "message": "set-up"},
        {"test": "b", "outcome": "passed", "message": ""},
        {"test": "a", "outcome": "passed", "message": ""},
    ]
    file = tmp_path / "outcomes.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(each.test, each.verdict) for each in read_lines("vllm", file)] == [
        ("a", "passed"),
        ("b", "passed"),
    ]
    assert read_lines("vllm", tmp_path / "none") == []


def test_each_kind_of_an_operation_s_failures_is_one(tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    file.write_text(
        "<testsuites><testsuite><testcase name='POST /a'>"
        "<failure message='ST103, ST202'>[400]</failure><failure message='ST202'>again</failure>"
        "<error>timed out</error></testcase>"
        "<testcase name='GET /b'/><testcase name='GET /c'><skipped/></testcase>"
        "</testsuite></testsuites>"
    )
    assert [(each.test, each.verdict, each.message) for each in read_report(file)] == [
        ("POST /a ST103", "failed", "[400]"),
        ("POST /a ST202", "failed", "[400]"),
        ("POST /a error", "failed", "timed out"),
        ("GET /b", "passed", ""),
        ("GET /c", "skipped", "schemathesis left it out"),
    ]
    assert read_report(tmp_path / "none.xml") == []


def test_a_log_of_open_responses_is_read_behind_warnings() -> None:
    results = [
        {"id": "a", "status": "passed"},
        {"id": "b", "status": "failed", "errors": ["one", "two"]},
        {"id": "c", "status": "skipped", "errors": None},
    ]
    log = (
        "(node:7) ExperimentalWarning: {x}\n" + json.dumps({"results": results}, indent=2) + "\nend"
    )
    assert [(each.test, each.verdict, each.message) for each in read_log("m", log)] == [
        ("m/a", "passed", ""),
        ("m/b", "failed", "one\ntwo"),
        ("m/c", "skipped", ""),
    ]
    assert read_log("m", "Fatal error") == []


def test_a_test_that_swallows_the_error_of_vllms_own_code_fails(tmp_path: Path) -> None:
    """Let a mere import pass, but fail a test that catches any exception."""
    (tmp_path / "conftest.py").write_text((STAND_INS / "vllm_tests" / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_own.py").write_text(
        "import pytest\n"
        "from vllm.platforms import current_platform\n"
        "from vllm.entrypoints.protocol import Request\n"
        "DEFAULT = Request(model='m')\n"
        "class Derived(Request): ...\n"
        "def test_import(): assert not current_platform.is_rocm()\n"
        "def test_used(): Request()\n"
        "def test_swallowed():\n"
        "    with pytest.raises(Exception):\n"
        "        Request.validate({})\n"
        "def test_parts(subtests):\n"
        "    for each in (1, 2):\n"
        "        with subtests.test(label=f'GET /{each}'):\n"
        "            assert each == 1\n"
    )
    outcomes = tmp_path / "outcomes.jsonl"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "outcome_lines"],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(STAND_INS), "SUITES_OUTCOMES": str(outcomes)},
        check=False,
        timeout=120,
    )
    found = {each.test.partition("::")[2]: each for each in read_lines("vllm", outcomes)}
    assert found["test_import"].verdict == "passed"
    assert found["test_parts GET /2"].verdict == "failed"
    assert found["test_parts"].verdict == "failed"
    for name, own in (("test_used", "Request"), ("test_swallowed", "Request.validate")):
        assert found[name].verdict == "failed"
        assert f"vLLM's own vllm.entrypoints.protocol.{own}" in found[name].message
