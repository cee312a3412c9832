"""msprobe's commands: python -m ulpscope.compat.msprobe [-f pytorch] run_ut -api_info dump.json

Each is told as a command of ulpscope, which is then run; one that has none says what to use instead. compare() and
compare_distributed() take two dumps or traces, and are answered in this process.
"""

import argparse
import importlib.util
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ulpscope.compat.telling import COMMANDS, PAGE, Fate, by_name, tell
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError

if TYPE_CHECKING:
    from ulpscope.workflows.compare.command import CompareResult

DEFAULT_OUT = "./output"
_COMMANDS = by_name(COMMANDS)

Words = list[str]


def main(words: Sequence[str]) -> int:
    """Run one of msprobe's commands; gives the exit code of ours."""
    if not words or words[0] in ("-h", "--help"):
        rows = [f"  {row.name:<22} {row.here.replace('`', '')}" for row in COMMANDS]
        print("\n".join(["python -m ulpscope.compat.msprobe [-f pytorch] COMMAND ...", "", *rows]))
        return int(ExitCode.OK)
    # -f pytorch stands before the command in versions up to 8.x; files tell the framework themselves.
    given = words[2:] if words[0] in ("-f", "--framework") else words
    try:
        command = translated(list(given))
    except UlpscopeError as error:
        print(f"ulpscope: error: {error}", file=sys.stderr)
        return int(error.code)
    print(f"ulpscope: {shlex.join(['ulpscope', *command])}", file=sys.stderr, flush=True)
    return subprocess.call([sys.executable, "-m", "ulpscope", *command])


def translated(words: Words) -> Words:
    """The words of a command of ulpscope that does what msprobe's did."""
    name = words[0] if words else ""
    row = _COMMANDS.get(name)
    if row is None:
        raise UlpscopeError(
            f"msprobe has no command {name!r}",
            expected=f"one of {', '.join(_COMMANDS)}",
            next_step=f"ulpscope --help lists ours; {PAGE}",
        )
    if row.fate is Fate.TOLD:
        raise UlpscopeError(
            f"msprobe's {name} has no counterpart here", expected=f"a command of {PAGE}", next_step=row.here
        )
    return _TRANSLATIONS[name](_Parser(name), words[1:])


class _Parser(argparse.ArgumentParser):
    """The options of one command, which are called here as they are in ours."""

    def __init__(self, name: str) -> None:
        super().__init__(prog=f"python -m ulpscope.compat.msprobe {name}", allow_abbrev=False)
        self.set_defaults(out=DEFAULT_OUT)

    def error(self, message: str) -> Any:
        """Words that are not understood are an error like any other of ours."""
        raise UlpscopeError(f"{self.prog}: {message}", expected=self.format_usage().strip(), next_step=PAGE)

    def take(self, **options: str) -> None:
        """Options with a value."""
        for name, words in options.items():
            self.add_argument(*words.split(), dest=name)

    def take_devices(self) -> None:
        self.add_argument("-d", "--device", dest="devices", nargs="+", default=["0"])

    def ignore(self, *options: str, **settings: Any) -> None:
        """Options that ask for nothing that is not done anyway, or for what does not exist here."""
        for option in options:
            self.add_argument(*option.split(), dest=f"ignored{option}", **settings or {"action": "store_true"})

    def read(self, words: Words) -> argparse.Namespace:
        args = self.parse_args(words)
        ignored = [
            name for name, item in vars(args).items() if name.startswith("ignored") and item not in (None, False)
        ]
        if ignored:
            tell(
                f"{', '.join(name.split()[-1].removeprefix('ignored') for name in ignored)} has no effect here ({PAGE})"
            )
        return args


def _compared(parser: _Parser, words: Words) -> Words:
    parser.take(config="-i --input_path", target="-tp --target_path", reference="-gp --golden_path")
    parser.take(out="-o --output_path")
    parser.add_argument("--xlsx", action="store_true")
    parser.take(ranks="--rank --ranks", steps="--step --steps")
    parser.add_argument("-da", "--diff_analyze", action="store_true")
    parser.ignore("-s --stack_mode", "-c --compare_only", "-f -fm --fuzzy_match", "-tensor_log --is_print_compare_log")
    parser.ignore("-m --mode", "--backend", "--config", nargs="?", const="")
    parser.ignore("--consistent_check")
    for option in ("-cm --cell_mapping", "-am --api_mapping", "-dm --data_mapping", "-lm --layer_mapping"):
        parser.add_argument(*option.split(), nargs="?", const="", dest="mapping")
    args = parser.read(words)
    if args.mapping is not None:
        tell(f"mappings have another form here: ulpscope compare --map FILE.yaml, see docs/compare.md ({PAGE})")
    both = args.target is not None and args.reference is not None
    if not both and args.config is None:
        parser.error("-tp TARGET -gp GOLDEN, or -i compare.json, is missing")
    sides = [args.reference, args.target] if both else [args.config]
    chosen = {"--steps": args.steps, "--ranks": args.ranks}
    ranges = [word for option, given in chosen.items() if given for word in (option, str(given).strip("[]"))]
    return ["compare", *sides, *ranges, *(["--xlsx"] if args.xlsx else []), "--out", _free(args.out)]


def _check(parser: _Parser, words: Words) -> Words:
    parser.take(api_info="-api_info --api_info_file", forward="-forward --forward_input_file")
    parser.take(backward="-backward --backward_input_file", out="-o --out_path")
    parser.add_argument("-save_error_data", action="store_true")
    parser.take_devices()
    parser.take(jobs="-n --num_splits")
    parser.add_argument("-f", "--filter_api", action="store_true")
    parser.take(csv="-csv_path --result_csv_path", config="-c -config --config_path")
    parser.ignore("-j --jit_compile", "-t --test", "-save_backward")
    args = parser.read(words)
    options, out = _chosen_apis(args.config), _free(args.out)
    if not args.filter_api:
        options.append("--all")
    if args.save_error_data:
        options.append("--save-failing")
    if args.csv is not None:
        out = str(Path(args.csv).parent)
        tell(f"-csv_path: the check that left its result in {out} goes on, if it was one of ulpscope's")
        options.append("--resume")
    if args.jobs is not None:
        options += ["--jobs", args.jobs]
    device = ["--device", _devices(args.devices)]
    return ["check", _run_of(parser, args), *device, *options, "--out", out, "--columns", "msprobe"]


def _overflowing(parser: _Parser, words: Words) -> Words:
    parser.take(api_info="-api_info --api_info_file", forward="-forward --forward_input_file")
    parser.take_devices()
    parser.ignore("-j --jit_compile")
    parser.set_defaults(backward=None)
    args = parser.read(words)
    return ["check", _run_of(parser, args), "--overflow", "--device", _devices(args.devices)]


def _overflow(parser: _Parser, words: Words) -> Words:
    parser.add_argument("-i", "--input_path", dest="run", required=True)
    parser.take(out="-o --output_path")
    args = parser.read(words)
    return ["overflow", args.run, "--out", _free(args.out)]


def _ratios(parser: _Parser, words: Words) -> Words:
    parser.add_argument("-npu", "--npu_csv_path", dest="npu", required=True)
    parser.add_argument("-gpu", "--gpu_csv_path", dest="gpu", required=True)
    parser.take(out="-o --out_path")
    args = parser.read(words)
    return ["compare", *(_check_result(each) for each in (args.gpu, args.npu)), "--out", _free(args.out)]


def _parse(parser: _Parser, words: Words) -> Words:
    parser.take(dump="-d --dump_path --input")
    parser.add_argument("-t", "--type", dest="form", default="npy", choices=("npy", "pt", "txt", "bin"))
    parser.take(out="-o --output_path")
    args = parser.read(words)
    return ["shell"] if args.dump is None else ["convert", args.dump, "--to", args.form, "-o", _free(args.out)]


_TRANSLATIONS: dict[str, Callable[[_Parser, Words], Words]] = {
    "compare": _compared,
    "run_ut": _check,
    "acc_check": _check,
    "multi_run_ut": _check,
    "multi_acc_check": _check,
    "api_precision_compare": _ratios,
    "run_overflow_check": _overflowing,
    "overflow_check": _overflow,
    "nan_analyze": _overflow,
    "parse": _parse,
}


def _free(out: str) -> str:
    """The directory itself if nothing is in it; msprobe's files had a time in their names, so here a folder has."""
    folder = Path(out)
    if not folder.is_dir() or not any(folder.iterdir()):
        return out
    return str(folder / f"result_{time.strftime('%Y%m%d%H%M%S')}")


def _devices(numbers: Sequence[str]) -> str:
    """What these numbers mean on this machine; msprobe knew NPUs and CUDA devices only."""
    kind = _device_kind()
    return "cpu" if kind is None else ",".join(f"{kind}:{number}" for number in numbers)


def _device_kind() -> str | None:
    if importlib.util.find_spec("torch_npu") is not None:
        return "npu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    tell("no NPU and no CUDA device here: the CPU is checked")
    return None


def _run_of(parser: _Parser, args: argparse.Namespace) -> str:
    """The file to check: dump.json, or forward_info, beside which backward_info is found by its name."""
    if args.api_info is not None:
        return str(args.api_info)
    if args.forward is None:
        parser.error("-api_info dump.json, or -forward forward_info_0.json, is missing")
    from ulpscope.dialects.api_checker import sibling

    forward = Path(args.forward)
    named = forward if "forward" in forward.name else forward.with_name("forward_info_0.json")
    backward = sibling(named, "backward")
    names = {named: args.forward, backward: args.backward}
    others = {name: given for name, given in names.items() if given and Path(given).resolve() != name.resolve()}
    if others:
        raise UlpscopeError(
            f"-forward {args.forward} with -backward {args.backward}",
            expected=f"names such as {named.name} and {backward.name}, by which files belong together",
            next_step=" && ".join(shlex.join(["cp", str(given), str(name)]) for name, given in others.items()),
        )
    return str(args.forward)


def _check_result(path: str) -> str:
    """The directory of a check of ours, where the table is one of its own; otherwise the table itself."""
    folder = Path(path).parent
    return str(folder) if (folder / "cases.jsonl").is_file() else path


def _chosen_apis(config: str | None) -> Words:
    """white_list and black_list of a config.json or config.yaml as options."""
    if config is None:
        return []
    path = Path(config)
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UlpscopeError(
            f"-config {path} cannot be read: {error}",
            expected="msprobe's config.json, or config.yaml of its checker",
            next_step="correct it, or use ulpscope check TRACE --only NAME --skip NAME",
            code=ExitCode.USAGE,
        ) from error
    if not isinstance(content, dict):
        return []
    sections = [content.get(name) for name in ("run_ut", "acc_check")]
    content = next((section for section in sections if isinstance(section, dict)), content)
    if content.get("error_data_path") not in (None, "", "./"):
        tell("error_data_path: what fails is saved below -o, with -save_error_data")
    lists = {"--only": content.get("white_list") or [], "--skip": content.get("black_list") or []}
    return [word for option, names in lists.items() for name in names for word in (option, str(name))]


# Of all versions, the newest first: dumps as JSON, and those of ptdbg_ascend.
TARGETS = ("target_path", "npu_path", "npu_json_path", "npu_pkl_path")
REFERENCES = ("golden_path", "bench_path", "bench_json_path", "bench_pkl_path")
# Whatever they say, stacks and all columns are there and the answer explains itself.
_QUIET = frozenset({"stack_mode", "auto_analyze", "xlsx", "summary_compare", "md5_compare", "suffix"})


def compare(input_param: Mapping[str, Any], output_path: str, **options: Any) -> "CompareResult":
    """Compare the dumps that input_param names; print the answer, and write it below output_path."""
    reference, target = (_path(input_param, names) for names in (REFERENCES, TARGETS))
    return _compare(reference, target, Path(output_path), options)


pt_compare = compare


def compare_distributed(npu_dump_dir: str, bench_dump_dir: str, output_path: str, **options: Any) -> "CompareResult":
    """Compare all ranks of two dumps; print the answer, and write it below output_path."""
    return _compare(Path(bench_dump_dir), Path(npu_dump_dir), Path(output_path), options)


def _compare(reference: Path, target: Path, out: Path, options: Mapping[str, Any]) -> "CompareResult":
    from ulpscope.workflows.compare.command import CompareOptions
    from ulpscope.workflows.compare.command import compare as compare_runs
    from ulpscope.workflows.results import prepare_result

    ignored = sorted(name for name, value in options.items() if value and name not in _QUIET)
    if ignored:
        tell(f"compare: {', '.join(ignored)} has no effect: calls are aligned by their order and shapes ({PAGE})")
    result = compare_runs(reference, target, CompareOptions())
    folder = out / f"compare_result_{time.strftime('%Y%m%d%H%M%S')}"
    prepare_result(folder, overwrite=True)
    page = result.write(folder, xlsx=bool(options.get("xlsx")))
    print(result.text(), end="")
    tell(f"compare: the tables are in {folder}, the page is {page}")
    return result


def _path(given: Mapping[str, Any], names: tuple[str, ...]) -> Path:
    stated = next((given[name] for name in names if isinstance(given.get(name), str) and given[name]), None)
    if stated is None:
        raise UlpscopeError(
            f"compare: input_param has {', '.join(map(str, given)) or 'nothing'}",
            expected=f"a dump.json or a directory of dumps as one of {', '.join(names)}",
            next_step=f"add it, or ulpscope compare REFERENCE TARGET; see {PAGE}",
        )
    return Path(stated)
