"""Tests of the command line: its errors are one line, name the fault and list the valid choices."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tasuki.cli import main as cli
from tasuki.engine.config import EngineConfig
from tasuki.server.config import ServerConfig
from tasuki.utils.flags import parse_config, parse_configs
from tasuki.utils.options import Auto, option
from tests.harness.programs import error_line, exit_status


@dataclass(frozen=True)
class Kitchen:
    bind: str = option("127.0.0.1:0", "where")
    dtype: str = option("float32", "kind", ("float32", "bfloat16"))
    batch_size: int = option(4, "how many")
    temperature: float = option(0.0, "how hot; 100% is boiling")
    verbose: bool = option(False, "say more")
    prompt: str | None = option(None, "text")

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch_size}")


@dataclass(frozen=True)
class Cellar:
    depth: int = option(3, "how deep")


def test_flags_are_the_fields() -> None:
    argv = "--bind 127.0.0.1:7 --dtype bfloat16 --batch-size 2 --temperature .5 --verbose"
    config = parse_config("tasuki cook", "", [*argv.split(), "--prompt", "a"], Kitchen)
    assert config == Kitchen("127.0.0.1:7", "bfloat16", 2, 0.5, True, "a")
    assert parse_config("tasuki cook", "", [], Kitchen) == Kitchen()
    two = parse_configs("tasuki cook", "", ["--depth=5", "--verbose"], Kitchen, Cellar)
    assert two == (Kitchen(verbose=True), Cellar(5))


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--batchsize", "2"], ["unknown flag --batchsize", "did you mean --batch-size?"]),
        (["--quux=1"], ["unknown flag --quux:", "--bind", "--batch-size", "--verbose"]),
        (["--batch", "2"], ["unknown flag --batch:"]),
        (["--batch-size", "two"], ["--batch-size must be a whole number, not 'two'"]),
        (["--temperature", "hot"], ["--temperature must be a number, not 'hot'"]),
        (["--dtype", "int8"], ["--dtype must be float32 or bfloat16, not 'int8'"]),
        (["--bind"], ["--bind needs a value"]),
        (["--batch-size", "0"], ["batch_size must be at least 1"]),
        (["stray"], ["stray"]),
    ],
)
def test_a_bad_flag_is_one_line_and_exit_2(
    argv: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_config("tasuki cook", "", argv, Kitchen)
    assert caught.value.code == 2
    line = error_line(capsys)
    assert line.startswith("tasuki cook: error: ")
    assert all(part in line for part in parts), line


def test_help_lists_flags_with_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_config("tasuki cook", "Cooks.", ["--help"], Kitchen)
    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert "100% is boiling (default: 0.0)" in told and "--batch-size" in told


def test_an_unknown_command_names_the_near_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["sevre"]) == 2
    line = error_line(capsys)
    assert line == (
        "tasuki: error: unknown command sevre: did you mean serve? `tasuki --help` lists them\n"
    )
    assert cli.main(["xyzzy"]) == 2
    assert "unknown command xyzzy: `tasuki --help` lists them" in error_line(capsys)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("serve", "--requests-per-key N "),
        ("serve", "--drain-grace SECONDS "),
        ("serve", "--watchers-per-key N "),
        ("ray", "--least-nodes N "),
        ("ray", "--plan-window SECONDS "),
        ("simulate", "--nodes N "),
        ("simulate", "--link-gb GB/S "),
        ("replay-trace", "--gb GIB "),
        ("quantise", "--out DIR "),
        ("decode", "--prefill HOST:PORT,..."),
    ],
)
def test_placeholders_fit_the_type_of_a_value(
    command: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number never has the placeholder of an address or a name."""
    everything = "--help-all" if command in ("serve", "decode") else "--help"
    assert exit_status([command, everything]) == 0
    assert shown in capsys.readouterr().out


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == cli.main(["--help"]) == cli.main(["version"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in cli.COMMANDS)
    assert told.splitlines()[-1].startswith("tasuki ")


def test_commands_name_modules_that_exist() -> None:
    root = Path(cli.__file__).resolve().parent.parent
    for module, _ in cli.COMMANDS.values():
        assert (root / (module.replace(".", "/") + ".py")).exists(), module


@pytest.mark.parametrize(
    ("argv", "status", "part"),
    [
        (["generate", "--model", "x"], 2, "either --prompt TEXT or --prompt-ids"),
        (["generate"], 2, "either --prompt TEXT or --prompt-ids"),
        (["generate", "--model", "x", "--prompt-ids", "/nowhere.json"], 1, "/nowhere.json"),
        (["serve", "--bund", "x"], 2, "did you mean --bind?"),
        (["demo", "--modle", "x"], 2, "did you mean --model?"),
    ],
)
def test_commands_fail_in_one_line(
    argv: list[str], status: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(argv) == status
    assert part in error_line(capsys)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "[1]", '[["a"]]', "[[true]]", "[[1e9]]", "[" * 100_000]
)
def test_a_bad_prompt_file_is_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(content)
    assert cli.main(["generate", "--model", "x", "--prompt-ids", str(path)]) == 1
    assert str(path) in error_line(capsys)


def test_a_bug_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(argv: list[str]) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("tasuki.cli.demo.main", broken)
    assert cli.main(["demo"]) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told and told.endswith("tasuki: error: a bug\n")


def test_a_file_gives_settings_and_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('max_batch = 3\ndtype = "float32"\n"arena-mib" = 9\ninsecure = true\n')
    engine, front = parse_configs(
        "tasuki serve", "", ["--config", str(path), "--max-batch=5"], EngineConfig, ServerConfig
    )
    assert (engine.max_batch, engine.dtype, engine.arena_mib) == (5, "float32", 9)
    assert front.insecure and front.bind == ServerConfig().bind


def test_a_size_may_be_left_open_in_a_file_and_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('max_batch = "auto"\narena_mib = 9\n')
    flags = ["--config", str(path), "--arena-mib", "auto"]
    engine, _ = parse_configs("tasuki serve", "", flags, EngineConfig, ServerConfig)
    assert (engine.max_batch, engine.arena_mib) == (Auto.AUTO, Auto.AUTO)
    assert engine == EngineConfig()
    engine, _ = parse_configs("tasuki serve", "", flags[:2], EngineConfig, ServerConfig)
    assert (engine.max_batch, engine.arena_mib) == (Auto.AUTO, 9)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("max_bath = 3", "unknown key max_bath: did you mean max_batch?"),
        ("max_batch = [3]", "max_batch must be text, a number or true"),
        ("max_batch = 0", "max_batch must be at least 1"),
        ('max_batch = "many"', "must be auto or a whole number, not 'many'"),
        ('prefill_chunk_tokens = "auto"', "must be a whole number, not 'auto'"),
        ("max_batch =", "is not TOML"),
    ],
)
def test_a_bad_file_is_one_line(
    tmp_path: Path, text: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node.toml"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        parse_configs("tasuki serve", "", ["--config", str(path)], EngineConfig, ServerConfig)
    assert ended.value.code == 2
    assert part in error_line(capsys)


@pytest.mark.parametrize(
    ("flag", "field"),
    [
        ("--max-num-seqs", "max_batch"),
        ("--max-running-requests", "max_batch"),
        ("--max-num-batched-tokens", "prefill_chunk_tokens"),
        ("--chunked-prefill-size", "prefill_chunk_tokens"),
        ("--model-path", "model"),
    ],
)
def test_other_engines_spellings_mean_the_same(flag: str, field: str) -> None:
    configs = parse_configs("tasuki serve", "", [flag, "128"], EngineConfig, ServerConfig)
    (config,) = (config for config in configs if hasattr(config, field))
    assert str(getattr(config, field)) == "128"


def test_other_engines_spellings_of_tls_mean_the_same() -> None:
    flags = ["--ssl-certfile", "c", "--ssl-keyfile", "k", "--ssl-ca-certs", "a"]
    _, front = parse_configs("tasuki serve", "", flags, EngineConfig, ServerConfig)
    assert (front.tls_cert, front.tls_key, front.tls_client_ca) == ("c", "k", "a")


def test_ray_is_asked_for_only_by_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["ray", "--prefill", "2"]) == 1
    assert "pip install 'tasuki[ray]'" in error_line(capsys)
    assert exit_status(["ray", "--decode", "0"]) == 2
    assert "at least one decode node" in error_line(capsys)
