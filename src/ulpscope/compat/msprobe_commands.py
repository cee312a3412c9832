"""msprobe's commands: python -m ulpscope.compat.msprobe [-f pytorch] run_ut -api_info dump.json

Each is told as a command of ulpscope, which is then run; one that has none says what to use instead.
"""

import argparse
import importlib.util
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from ulpscope.compat.telling import COMMANDS, PAGE, Fate, by_name, tell
from ulpscope.dialects.api_checker import sibling
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError

DEFAULT_OUT = "./output"
_COMMANDS = by_name(COMMANDS)

Words = list[str]


def main(words: Sequence[str]) -> int:
    """Run one of msprobe's commands; gives the exit code of ours."""
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return int(ExitCode.OK)
    try:
        command = translated(_without_framework(list(words)))
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
    return _TRANSLATIONS[name](_parser(name), words[1:])


def _help() -> str:
    rows = [f"  {row.name:<22} {row.here.replace('`', '')}" for row in COMMANDS]
    return "\n".join(["python -m ulpscope.compat.msprobe [-f pytorch] COMMAND ...", "", *rows])


def _without_framework(words: Words) -> Words:
    """-f pytorch stands before the command in versions up to 8.x; files tell the framework themselves."""
    if words and words[0] in ("-f", "--framework"):
        return words[2:]
    return words


def _parser(name: str) -> argparse.ArgumentParser:
    return _Parser(prog=f"python -m ulpscope.compat.msprobe {name}", allow_abbrev=False)


class _Parser(argparse.ArgumentParser):
    """Words that are not understood are an error like any other of ours."""

    def error(self, message: str) -> Any:
        raise UlpscopeError(f"{self.prog}: {message}", expected=self.format_usage().strip(), next_step=PAGE)


def _compare(parser: argparse.ArgumentParser, words: Words) -> Words:
    parser.add_argument("-i", "--input_path", dest="config")
    parser.add_argument("-tp", "--target_path", dest="target")
    parser.add_argument("-gp", "--golden_path", dest="reference")
    parser.add_argument("-o", "--output_path", dest="out", default=DEFAULT_OUT)
    parser.add_argument("--xlsx", action="store_true")
    parser.add_argument("--rank", "--ranks", dest="ranks")
    parser.add_argument("--step", "--steps", dest="steps")
    parser.add_argument("-da", "--diff_analyze", action="store_true")
    _ignore(
        parser, "-s --stack_mode", "-c --compare_only", "-f -fm --fuzzy_match", "-tensor_log --is_print_compare_log"
    )
    _ignore(parser, "-m --mode", "--backend", "--config", takes="?")
    _ignore(parser, "--consistent_check")
    for option in ("-cm --cell_mapping", "-am --api_mapping", "-dm --data_mapping", "-lm --layer_mapping"):
        parser.add_argument(*option.split(), nargs="?", const="", dest="mapping")
    args = _parsed(parser, words)
    if args.mapping is not None:
        tell(f"mappings have another form here: ulpscope compare --map FILE.yaml, see docs/compare.md ({PAGE})")
    both = args.target is not None and args.reference is not None
    if not both and args.config is None:
        parser.error("-tp TARGET -gp GOLDEN, or -i compare.json, is missing")
    sides = [args.reference, args.target] if both else [args.config]
    ranges = [word for option in ("steps", "ranks") if getattr(args, option) for word in _option(args, option)]
    return ["compare", *sides, *ranges, *(["--xlsx"] if args.xlsx else []), "--out", _free(args.out)]


def _check(parser: argparse.ArgumentParser, words: Words) -> Words:
    parser.add_argument("-api_info", "--api_info_file", dest="api_info")
    parser.add_argument("-forward", "--forward_input_file", dest="forward")
    parser.add_argument("-backward", "--backward_input_file", dest="backward")
    parser.add_argument("-o", "--out_path", dest="out", default=DEFAULT_OUT)
    parser.add_argument("-save_error_data", action="store_true")
    parser.add_argument("-d", "--device", dest="devices", nargs="+", default=["0"])
    parser.add_argument("-n", "--num_splits", dest="jobs")
    parser.add_argument("-f", "--filter_api", action="store_true")
    parser.add_argument("-csv_path", "--result_csv_path", dest="csv")
    parser.add_argument("-c", "-config", "--config_path", dest="config")
    _ignore(parser, "-j --jit_compile", "-t --test", "-save_backward")
    args = _parsed(parser, words)
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


def _overflowing(parser: argparse.ArgumentParser, words: Words) -> Words:
    parser.add_argument("-api_info", "--api_info_file", dest="api_info")
    parser.add_argument("-forward", "--forward_input_file", dest="forward")
    parser.add_argument("-d", "--device", dest="devices", nargs="+", default=["0"])
    _ignore(parser, "-j --jit_compile")
    args = _parsed(parser, words)
    args.backward = None
    return ["check", _run_of(parser, args), "--overflow", "--device", _devices(args.devices)]


def _overflow(parser: argparse.ArgumentParser, words: Words) -> Words:
    parser.add_argument("-i", "--input_path", dest="run", required=True)
    parser.add_argument("-o", "--output_path", dest="out", default=DEFAULT_OUT)
    args = _parsed(parser, words)
    return ["overflow", args.run, "--out", _free(args.out)]


def _ratios(parser: argparse.ArgumentParser, words: Words) -> Words:
    parser.add_argument("-npu", "--npu_csv_path", dest="npu", required=True)
    parser.add_argument("-gpu", "--gpu_csv_path", dest="gpu", required=True)
    parser.add_argument("-o", "--out_path", dest="out", default=DEFAULT_OUT)
    args = _parsed(parser, words)
    return ["compare", *(_check_result(each) for each in (args.gpu, args.npu)), "--out", _free(args.out)]


def _parse(parser: argparse.ArgumentParser, words: Words) -> Words:
    parser.add_argument("-d", "--dump_path", "--input", dest="dump")
    parser.add_argument("-t", "--type", dest="form", default="npy", choices=("npy", "pt", "txt", "bin"))
    parser.add_argument("-o", "--output_path", dest="out", default=DEFAULT_OUT)
    args = _parsed(parser, words)
    return ["shell"] if args.dump is None else ["convert", args.dump, "--to", args.form, "-o", _free(args.out)]


_TRANSLATIONS: dict[str, Callable[[argparse.ArgumentParser, Words], Words]] = {
    "compare": _compare,
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


def _ignore(parser: argparse.ArgumentParser, *options: str, takes: str | None = None) -> None:
    """Options that ask for nothing that is not done anyway, or for what does not exist here."""
    for option in options:
        if takes is None:
            parser.add_argument(*option.split(), action="store_true", dest=f"ignored{option}")
        else:
            parser.add_argument(*option.split(), nargs=takes, const="", dest=f"ignored{option}")


def _parsed(parser: argparse.ArgumentParser, words: Words) -> argparse.Namespace:
    args = parser.parse_args(words)
    given = [name.removeprefix("ignored").split()[-1] for name, item in vars(args).items() if _is_ignored(name, item)]
    if given:
        tell(f"{', '.join(given)} has no effect here ({PAGE})")
    return args


def _is_ignored(name: str, item: Any) -> bool:
    return name.startswith("ignored") and item not in (None, False)


def _free(out: str) -> str:
    """The directory itself if nothing is in it; msprobe's files had a time in their names, so here a folder has."""
    folder = Path(out)
    if not folder.is_dir() or not any(folder.iterdir()):
        return out
    return str(folder / f"result_{time.strftime('%Y%m%d%H%M%S')}")


def _option(args: argparse.Namespace, name: str) -> Words:
    return [f"--{name}", str(getattr(args, name)).strip("[]")]


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


def _run_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """The file to check: dump.json, or forward_info, beside which backward_info is found by its name."""
    if args.api_info is not None:
        return str(args.api_info)
    if args.forward is None:
        parser.error("-api_info dump.json, or -forward forward_info_0.json, is missing")
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
    content = _config(Path(config))
    lists = {"--only": content.get("white_list") or [], "--skip": content.get("black_list") or []}
    if content.get("error_data_path") not in (None, "", "./"):
        tell("error_data_path: what fails is saved below -o, with -save_error_data")
    return [word for option, names in lists.items() for name in names for word in (option, str(name))]


def _config(path: Path) -> dict[str, Any]:
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
        return {}
    sections = [content.get(name) for name in ("run_ut", "acc_check")]
    return next((section for section in sections if isinstance(section, dict)), content)
