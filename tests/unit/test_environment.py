"""What can change numbers: what is kept of it, what never is, and how two environments are ranked."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.handmade import HandmadeRun
from tests.unit.traces import rank_info

from ulpscope.capture.recording import environment
from ulpscope.capture.recording.config_files import LONGEST, MOST_KEYS, config_files
from ulpscope.capture.recording.machine import machine
from ulpscope.capture.recording.secrets import MASK, masked, masked_words, names_secret
from ulpscope.cli.main import main
from ulpscope.diagnose.environment.differences import differences_of, quoted
from ulpscope.diagnose.environment.rules import RULES, rule_of
from ulpscope.records.enums import Phase
from ulpscope.records.environments import Environment, Likelihood
from ulpscope.records.evidence import Evidence
from ulpscope.records.findings import Comparison, Counts, Finding, FindingKind, Outcome, Place, Scope
from ulpscope.records.pairs import Pair
from ulpscope.trace.environment import environment_of
from ulpscope.workflows.run.command import child_environment


@pytest.mark.parametrize(
    "name",
    "HF_TOKEN --hub-token api_key apiKey AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY db.password DB_PASS githubToken auth "
    "WANDB_API_KEY proxy_credentials ssh-key client_secret jwt SENTRY_DSN authToken api_tokens".split(),
)
def test_what_bears_such_a_name_is_secret(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize(
    "name",
    "lr max_tokens num_key_value_heads tokenizer_name author monkey keypoints passes compass OMP_NUM_THREADS".split(),
)
def test_what_only_looks_like_it_is_not(name: str) -> None:
    assert not names_secret(name)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("https://me:pa55@host/data", f"https://{MASK}@host/data"),
        ("https://host/data?token=abc&step=3", f"https://host/data?token={MASK}&step=3"),
        ("header 'Bearer abcdefgh'", f"header 'Bearer {MASK}'"),
        ("login('hf_abcdefghij')", f"login('{MASK}')"),
        ("password = 'my own words'", f"password = {MASK}"),
        ("https://host:8080/data lr=0.1", "https://host:8080/data lr=0.1"),
    ],
)
def test_secrets_are_masked_in_a_text(text: str, told: str) -> None:
    assert masked(text) == told


def test_an_option_s_value_is_masked_wherever_it_stands() -> None:
    words = ["train.py", "--hub-token", "abc", "--api-key=def", "HF_TOKEN=ghi", "--lr", "-1", "-c", "key = 'jkl'"]
    told = masked_words(words)
    assert told[:7] == ["train.py", "--hub-token", MASK, f"--api-key={MASK}", f"HF_TOKEN={MASK}", "--lr", "-1"]
    assert "jkl" not in told[-1]
    assert masked_words(["--token", "--lr", "0.1"]) == ["--token", "--lr", "0.1"]


def test_values_are_kept_of_variables_that_change_numbers_alone() -> None:
    environ = {
        "OMP_NUM_THREADS": "2",
        "HOME": "/h",
        "NCCL_TOKEN": "abc",
        "TF_TOKEN_app_example_com": "ghi",
        "TORCH_HOME": "https://a:b@c",
        "ULPSCOPE_X": "1",
    }
    assert environment.variables(environ) == {"OMP_NUM_THREADS": "2", "TORCH_HOME": f"https://{MASK}@c"}
    assert environment.other_variables(environ) == ["HOME", "NCCL_TOKEN", "TF_TOKEN_app_example_com"]


def test_every_installed_package_and_the_processor_are_told() -> None:
    assert environment.installed()["numpy"] == environment.versions(("numpy",))["numpy"]
    assert len(environment.installed()) > 10
    assert machine()["cpus"] >= 1


def test_a_config_file_is_taken_apart_without_its_secrets(tmp_path: Path) -> None:
    texts = {
        "a.yaml": "lr: 0.1\nmodel: {layers: [1, 2], hub_token: abc}\nsecrets:\n  here: def\nbad: .nan\n",
        "b.json": '{"url": "https://me:pw@host", "on": true}',
        "c.txt": "anything",
        "d.json": "{",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = config_files([tmp_path / name for name in (*texts, "not there")])
    told = {Path(path).name: entry for path, entry in found.items()}
    assert told["a.yaml"]["values"] == {
        "lr": 0.1, "model.layers[0]": 1, "model.layers[1]": 2, "model.hub_token": MASK, "secrets": MASK, "bad": "nan"
    }  # fmt: skip
    assert told["b.json"]["values"] == {"url": f"https://{MASK}@host", "on": True}
    assert set(told["c.txt"]) == {"digest"}
    assert "JSONDecodeError" in told["d.json"]["problem"]
    assert set(told["not there"]) == {"problem"}
    json.dumps(found, allow_nan=False)


def test_a_config_file_that_is_made_to_fill_the_memory_does_not(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    lines += ["self: &self [*self]"]
    (tmp_path / "a.yaml").write_text("\n".join(lines), encoding="utf-8")
    ((_, told),) = config_files([tmp_path / "a.yaml"]).items()
    assert set(told) == {"digest"}


def test_what_is_too_long_to_be_kept_is_still_compared(tmp_path: Path) -> None:
    for name, last in (("one", 1), ("other", 2)):
        many = {f"k{number}": 0 for number in range(MOST_KEYS)} | {"last": last}
        contents = {"many": json.dumps(many), "long": json.dumps({"text": "x" * LONGEST + str(last)})}
        for kind, text in contents.items():
            (tmp_path / f"{name}_{kind}.json").write_text(text, encoding="utf-8")
    for kind in ("many", "long"):
        one, other = config_files([tmp_path / f"{name}_{kind}.json" for name in ("one", "other")]).values()
        assert one.get("values", one["digest"]) != other.get("values", other["digest"])


def test_a_number_of_thousands_of_digits_is_told_and_written(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"big: 0x1{'0' * 5000}\n", encoding="utf-8")
    ((_, told),) = config_files([tmp_path / "a.yaml"]).items()
    assert told["values"]["big"].startswith("0x1")
    json.dumps(told)


def test_every_part_has_a_rule_for_any_name() -> None:
    assert all(RULES[rule_of(part, "no such name")].part == part for part in {rule.part for rule in RULES})


def test_what_computes_matters_more_than_what_does_not() -> None:
    assert RULES[rule_of("packages", "torch")].likelihood is Likelihood.POSSIBLE
    assert RULES[rule_of("packages", "requests")].likelihood is Likelihood.UNLIKELY
    assert RULES[rule_of("switches", "float32_matmul_precision")].likelihood is Likelihood.LIKELY
    assert RULES[rule_of("command", "--lr")].likelihood is Likelihood.LIKELY
    assert RULES[rule_of("command", "argument 0")].likelihood is Likelihood.POSSIBLE


def sides(reference: dict[str, Any], target: dict[str, Any]) -> Pair[Environment]:
    return Pair(Environment(reference), Environment(target))


def test_what_is_likely_to_matter_comes_first() -> None:
    found = differences_of(
        sides(
            {"packages": {"requests": "1", "torch": "2.6"}, "switches": {"default_dtype": "float32"}, "drivers": {}},
            {"packages": {"requests": "2", "torch": "2.7"}, "switches": {"default_dtype": "float64"}, "devices": {}},
        )
    )
    assert [each.name for each in found] == ["default_dtype", "torch", "requests"]


def test_a_variable_that_one_side_alone_has_differs() -> None:
    (found,) = differences_of(sides({"variables": {}}, {"variables": {"NVIDIA_TF32_OVERRIDE": "1"}}))
    assert (found.reference, found.target, found.likelihood) == (None, "1", Likelihood.LIKELY)


def test_weights_are_told_once_and_a_seed_only_where_it_was_used() -> None:
    weights = {"parameters": {"a": "1", "b": "2", "c": "3"}}, {"parameters": {"a": "1", "b": "3", "c": "4"}}
    (found,) = differences_of(sides(*weights))
    assert (found.name, found.more) == ("b", 1)
    seeds = [{"seeds": {"torch_state": state}, "random_calls": {"step 0": 0}} for state in "ab"]
    assert differences_of(sides(*seeds)) == []
    drawn = [{**each, "random_calls": {"step 0": 2}} for each in seeds]
    assert [each.reason for each in differences_of(sides(*drawn))] == ["seed"]


def test_options_of_a_command_line_are_compared_by_name() -> None:
    def told(*words: str) -> dict[str, Any]:
        return asdict(rank_info(process={"command": ["python", "train.py", *words]}))

    before, after = (environment_of(told(*words)) for words in (["--lr", "-1e-3", "--fp16", "x"], ["x", "--lr=1"]))
    found = {each.name: (each.reference, each.target) for each in differences_of(Pair(before, after))}
    assert found["--lr"] == ("-1e-3", "1")
    assert found["--fp16"] == ("x", None)


def test_a_rank_file_with_anything_in_it_is_no_error() -> None:
    strange = asdict(
        rank_info(process={"command": 3}, environment={"libraries": 3, "configs": {"a": 3}, "switches": []})
    )
    assert environment_of(strange).parts["configs"] == {"a: digest": None}


def comparison(kind: FindingKind | None, *, call: str | None = "torch.relu.0") -> Comparison:
    (likely,) = differences_of(sides({"switches": {"default_dtype": "a"}}, {"switches": {"default_dtype": "b"}}))
    (possible,) = differences_of(sides({"packages": {"torch": "1"}}, {"packages": {"torch": "2"}}))
    findings = () if kind is None else (Finding(kind, Place(0, 0, Phase.FORWARD, call=call), Evidence()),)
    scope = Scope((0,), (0,))
    return Comparison("a", "b", Outcome.DIVERGED, findings, (), Counts(), scope, environment=(likely, possible))


def test_compare_quotes_what_may_explain_a_divergence_that_no_call_does() -> None:
    assert [each.name for each in quoted(comparison(None))] == ["default_dtype", "torch"]
    assert [each.name for each in quoted(comparison(FindingKind.COMPUTATION, call=None))] == ["default_dtype", "torch"]
    assert [each.name for each in quoted(comparison(FindingKind.RANDOMNESS))] == ["default_dtype"]
    assert quoted(comparison(FindingKind.COMPUTATION)) == ()


def trace_with(path: Path, weight: float, **info: Any) -> Path:
    run = HandmadeRun()
    batch, parameter = run.value([1.0, 2.0]), run.value([weight])
    model = run.call(
        "torch.nn.Linear", kind="module", module="model", reads={"args.0": batch}, makes={"output.0": [1.0]}
    )
    run.use(model, "parameter", "weight", parameter)
    run.call("torch.dropout", random=True)
    run.write(path, **info)
    return path


def test_two_traces_are_compared_by_what_they_were_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [trace_with(tmp_path / name, weight) for name, weight in (("a", 1.0), ("b", 2.0), ("c", 1.0))]
    assert main(["diff", str(paths[0]), str(paths[2])]) == 0
    assert "alike" in capsys.readouterr().out
    assert main(["diff", str(paths[0]), str(paths[1]), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(each["part"], each["name"]) for each in told["differences"]] == [("parameters", "model.weight")]
    assert told["verdict"] == "differ"


def test_a_written_environment_is_compared_and_a_trace_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text("lr: 0.1\nhub_token: abcdef\n", encoding="utf-8")
    here, other = tmp_path / "here.json", tmp_path / "other.json"
    assert main(["env", "-o", str(here), "--config", str(tmp_path / "a.yaml")]) == 0
    assert capsys.readouterr().out.endswith(f"Written to {here}\n")
    assert main(["env", "-o", str(here)]) == 2  # it is there already
    text = here.read_text(encoding="utf-8")
    assert "abcdef" not in text
    other.write_text(text.replace('"a.yaml', '"b/a.yaml').replace('"lr": 0.1', '"lr": 0.2'), encoding="utf-8")
    capsys.readouterr()
    assert main(["diff", str(here), str(here)]) == 0
    assert main(["diff", str(here), str(other)]) == 1
    assert "a.yaml: lr" in capsys.readouterr().out
    assert main(["diff", str(here), str(trace_with(tmp_path / "t", 1.0))]) == 1
    assert "told by one side only" in capsys.readouterr().out
    other.write_text(text[: len(text) // 2], encoding="utf-8")
    assert main(["diff", str(here), str(other)]) == 2
    assert main(["diff", str(here), str(tmp_path / "a.yaml")]) == 2
    array = tmp_path / "a.npy"
    np.save(array, np.ones(3))
    capsys.readouterr()
    assert main(["diff", str(here), str(array)]) == 2
    assert f"{array} is an array, not a file of `ulpscope env -o FILE` or a trace" in capsys.readouterr().err


def test_the_files_of_a_run_are_found_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ulpscope.capture.settings import SETTINGS_VARIABLE, settings_from_json
    from ulpscope.records.runs import CaptureSettings

    monkeypatch.chdir(tmp_path)
    settings = CaptureSettings(Path("out"), configs=(Path("a.yaml"),))
    told = child_environment({}, settings, rendezvous=tmp_path)[SETTINGS_VARIABLE]
    assert settings_from_json(told).configs == (tmp_path / "a.yaml",)
    assert main(["run", "-o", "t", "--config", "not-there", "--", "true"]) == 2
