"""What became of every name that msprobe gave its users: keys of config.json, Python names, commands.

Behaviour, messages and the tables of docs/compat-msprobe.md come from here.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

PAGE = "docs/compat-msprobe.md"


class Fate(str, Enum):
    """What a name does here."""

    KEPT = "kept"
    """What it did in msprobe."""
    MAPPED = "mapped"
    """Something else that serves the same purpose."""
    TOLD = "told"
    """Nothing: what to write instead is said, once."""


@dataclass(frozen=True, slots=True)
class Old:
    """One name of msprobe."""

    name: str
    fate: Fate
    here: str
    """What it does, or what to write instead: half a sentence."""
    quiet: tuple[Any, ...] = ()
    """Values for which nothing need be said: they ask for what happens anyway."""


def _kept(name: str, here: str) -> Old:
    return Old(name, Fate.KEPT, here)


def _mapped(name: str, here: str) -> Old:
    return Old(name, Fate.MAPPED, here)


def _told(name: str, here: str, *quiet: Any) -> Old:
    return Old(name, Fate.TOLD, here, (None, *quiet))


_AFTERWARDS = "traces are compared after the run: ulpscope compare REFERENCE TARGET"
_PERTURB = "to perturb calls without a reference: ulpscope check TRACE --perturb"
_CHECK = "the checker reads the trace: ulpscope check TRACE --device npu"
_DEVICE_DUMP = "there is no dump by the device; level L2 records kernels as torch dispatches them, backward included"
_GRADIENTS = "gradients of every recorded step are in the trace: ulpscope compare REFERENCE TARGET"
_ONLINE = "there is no connection to another machine: copy the trace there, and ulpscope check TRACE"

KEYS = (
    _kept("task", "`statistics`: summaries of all values; `tensor`: their data, too. Others: see the tasks below"),
    _kept("dump_path", "the trace; `./dump_path` where neither a file nor an argument says it"),
    _kept("rank", '`[]` for all, numbers and ranges such as `"2-4"`'),
    _kept("step", "as `rank`; after the last one the trace is closed"),
    _mapped(
        "level",
        "`L0` modules; `L1` and `mix` modules and APIs; `L2` kernels as well, on any device; `debug` only "
        "what is handed to `save`",
    ),
    _kept(
        "list",
        "msprobe's names and parts of them; a call comes with its backward, a module with all that is in it, "
        "an API at level L2 with its kernels; of Python's operators (`Tensor.__add__.3`) all calls",
    ),
    _kept("seed", "`seed_all(seed, is_deterministic)` when the debugger is made"),
    _kept("is_deterministic", "see `seed`"),
    _kept(
        "enable_dataloader",
        "true: each batch of a DataLoader is a step, and start, stop and step do nothing. The training goes "
        "on after the last of `step`",
    ),
    _mapped("dump_enable", "false: nothing is captured. It is read once, when the debugger is made"),
    _mapped(
        "file_format",
        "`msprobe`: the steps are in `dump_path` in msprobe's own layout when the capture ends, and the trace "
        "in `dump_path-trace`. Otherwise data is kept as safetensors; `ulpscope convert TRACE --to msprobe` "
        "makes .pt files of it",
    ),
    _told(
        "scope",
        "all calls between start and stop are captured; `list` chooses calls, or put start and stop around the part",
        [],
    ),
    _told(
        "data_mode",
        "inputs, outputs and gradients are always recorded; a trace of stats stays small",
        ["all"],
        [],
    ),
    _told(
        "summary_mode",
        "every value has statistics, a sketch and a digest, which tells identical values as md5 and xor do",
        "statistics",
        "",
    ),
    _told("tensor_list", 'data is saved of all recorded calls or of none: task "tensor" with `list`', []),
    _told("slice", "whole values are recorded", []),
    _told("request_id", "all requests are recorded"),
    _told("extra_info", "call stacks and the module tree are always recorded", True),
    _told("async_dump", "a capture never waits for the device inside a step", True, False),
    _told("precision", "sums are always in float64", "low", "high"),
    _told("risk_level", "all operations are recorded; `list` chooses", "ALL"),
    _told("custom_op_namespaces", "operators of every namespace are recorded", ["_C_ascend"], []),
    _told("load", "inputs of modules are NOT replaced: the run computes with its own"),
    _told("bench_path", _AFTERWARDS, ""),
    _told("diff_nums", _AFTERWARDS, 1),
    _told("acl_config", _DEVICE_DUMP, ""),
    _told("backward_input", _DEVICE_DUMP, "", []),
    _told("device", "statistics are computed where the tensor is"),
    _told("overflow_nums", "every overflow is in the trace: ulpscope overflow TRACE"),
    _told("check_mode", "every overflow is in the trace: ulpscope overflow TRACE", "all"),
    _told("white_list", "the checker chooses: ulpscope check TRACE --only NAME", []),
    _told("black_list", "the checker chooses: ulpscope check TRACE --skip NAME", []),
    _told("error_data_path", "the checker saves what fails: ulpscope check TRACE --out DIR --save-failing", "./", ""),
    _told("is_online", _ONLINE, False),
    _told("is_benchmark_device", _ONLINE),
    _told("nfs_path", _ONLINE, ""),
    _told("tls_path", _ONLINE, ""),
    _told("host", _ONLINE, ""),
    _told("port", _ONLINE, -1),
    _told("master_ip", _ONLINE, ""),
    _told("master_port", _ONLINE, ""),
    _told("rank_list", _ONLINE, []),
    _told("fuzz_device", _PERTURB),
    _told("pert_mode", _PERTURB),
    _told("handler_type", _PERTURB + "; results are never replaced by corrected ones"),
    _told("fuzz_level", _PERTURB),
    _told("fuzz_stage", _PERTURB),
    _told("if_preheat", _PERTURB),
    _told("preheat_step", _PERTURB),
    _told("max_sample", _PERTURB),
    _told("grad_level", _GRADIENTS),
    _told("param_list", _GRADIENTS, []),
    _told("bounds", _GRADIENTS),
)

TASKS = (
    _kept("statistics", "summaries of all values"),
    _kept("tensor", "their data, too"),
    _mapped("structure", "captured as statistics: a trace always holds the structure"),
    _mapped("acc_check", f"captured as statistics: {_CHECK}"),
    _mapped("run_ut", f"captured as statistics: {_CHECK}"),
    _mapped("nan_check", "captured as statistics: ulpscope overflow TRACE tells where nan and inf began"),
    _mapped("overflow_check", "captured as statistics: ulpscope overflow TRACE tells where nan and inf began"),
    _mapped("exception_dump", "captured as statistics: ulpscope overflow TRACE tells where nan and inf began"),
    _mapped("diff_check", f"captured as statistics: {_AFTERWARDS}"),
    _mapped("free_benchmark", f"captured as statistics: {_PERTURB}"),
    _mapped("grad_probe", f"captured as statistics: {_GRADIENTS}"),
)

_EVERY_STEP = "a trace of every step: PrecisionDebugger without `step`, then ulpscope compare"
_RUN = "ulpscope run -o TRACE -- python train.py, which needs no call in the script"

NAMES = (
    _kept(
        "PrecisionDebugger",
        "one a process; arguments win over the file, and those of older versions are taken, too (`model`, "
        "`hook_name`, `rank`, `enable_dataloader`). A trace in `dump_path` is replaced; if other files are "
        "there, the trace goes to `dump_path-trace`",
    ),
    _kept(
        "PrecisionDebugger.start",
        "captures from here on. A module's paths begin with `model`, those of a list with `model0`, `model1`, "
        "... `token_range`, `rank_id`, `scheduled_tokens` have no effect, which is said",
    ),
    _kept("PrecisionDebugger.stop", "torch is left alone until the next start"),
    _kept("PrecisionDebugger.forward_backward_dump_end", "as stop"),
    _kept("PrecisionDebugger.step", "an iteration has ended. Only this begins a step"),
    _kept(
        "PrecisionDebugger.save",
        "a call `name.N` of the operation `msprobe.save` with the tensors in the variable (also in lists and "
        "dictionaries), and its backward with their gradients; at level `debug` anywhere, at other levels "
        "between start and stop",
    ),
    _kept("PrecisionDebugger.set_init_step", "the running iteration has this number"),
    _told("PrecisionDebugger.register_custom_api", "torch calls inside custom functions are seen anyway"),
    _told("PrecisionDebugger.restore_custom_api", "nothing was registered"),
    _told("PrecisionDebugger.monitor", _GRADIENTS),
    _told(
        "PrecisionDebugger.configure_hook",
        "`list` of config.json chooses calls; all that it chooses between start and stop is captured",
    ),
    _mapped(
        "module_dump",
        "paths of this module begin with `name`, and the capture starts if it had not. What is inside the "
        "module is captured, too",
    ),
    _mapped("module_dump_end", "nothing: `stop` ends the capture"),
    _kept(
        "seed_all",
        "seeds Python, numpy and torch on all devices, deterministic algorithms with `mode`, no dropout with "
        "`rm_dropout`. `is_enhanced` is told",
    ),
    _kept("set_reproducibility", "as seed_all"),
    _mapped(
        "compare",
        "ulpscope compare: the answer is printed and written to a directory `compare_result_TIME` in `output_path`",
    ),
    _mapped("pt_compare", "as compare"),
    _mapped("compare_distributed", "as compare, of two directories with all ranks"),
    _kept("acl_save", "as PrecisionDebugger.save; gives the tensor back"),
    _told("TrainerMon", _EVERY_STEP),
    _told("TrainerMonitorV2", _EVERY_STEP),
    _told("monitor", _EVERY_STEP),
    _told("GradComparator", _GRADIENTS),
    _told("random_save", "random calls of a trace: ulpscope show TRACE --json"),
    _told("SingleSave", "PrecisionDebugger.save(variable, name) with level debug"),
    _told("SingleComparator", "PrecisionDebugger.save(variable, name) with level debug, then ulpscope compare"),
    _told("PrecisionChecker", f"{_RUN} --compiled eager, once more without, then ulpscope compare"),
    _told(
        "ConfigChecker",
        "versions, switches and seeds of both runs are in their traces: ulpscope compare tells what differs",
    ),
    _told("PtdbgDispatch", _CHECK),
    _told("set_ge_dump_config", _RUN),
    _told("set_fx_dump_config", _RUN),
    _told("AclGraphDumper", _RUN),
    _told("parse", "ulpscope shell"),
)

_GRAPH = "ulpscope compare REFERENCE TARGET --out DIR, then ulpscope report DIR --model-explorer OUT"

COMMANDS = (
    _mapped("compare", "`ulpscope compare REFERENCE TARGET`"),
    _mapped("run_ut", "`ulpscope check TRACE --columns msprobe`"),
    _mapped("acc_check", "`ulpscope check TRACE --columns msprobe`"),
    _mapped("multi_run_ut", "`ulpscope check TRACE --columns msprobe --jobs N`"),
    _mapped("multi_acc_check", "`ulpscope check TRACE --columns msprobe --jobs N`"),
    _mapped("api_precision_compare", "`ulpscope compare GPU_RESULT NPU_RESULT`"),
    _mapped("run_overflow_check", "`ulpscope check TRACE --overflow`"),
    _mapped("overflow_check", "`ulpscope overflow TRACE`"),
    _mapped("nan_analyze", "`ulpscope overflow TRACE`"),
    _mapped("parse", "`ulpscope convert DUMP --to npy` with `-d`, otherwise `ulpscope shell`"),
    _told("merge_result", "ulpscope compare takes all ranks at once"),
    _told("graph", _GRAPH),
    _told("graph_visualize", _GRAPH),
    _told("config_check", "versions, switches and seeds are in every trace: ulpscope compare tells what differs"),
    _told("config_checking", "versions, switches and seeds are in every trace: ulpscope compare tells what differs"),
    _told("data2db", "ulpscope report RESULT opens in any browser"),
    _told("op_generate", "ulpscope repro TRACE CALL"),
    _told("code_mapping", "every call of a trace has its source line: ulpscope show TRACE CALL"),
    _told("offline_dump", "ulpscope compare takes what an NPU or ONNX Runtime dumped: docs/compare-network.md"),
    _told("install_deps", "nothing is needed beyond ulpscope"),
)


def by_name(rows: tuple[Old, ...]) -> dict[str, Old]:
    return {row.name: row for row in rows}
