"""`ls`, `ni` and `pk`: the operators of the graphs, or the calls of a trace.

`pt`, `cp`, `cn` and `dc`: tensors printed, compared and converted.
"""

import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from ulpscope.dialects.ascend.converting import FileKind, Wanted
from ulpscope.graph.names import sanitised
from ulpscope.graph.query import OperatorFilter
from ulpscope.numerics.pairs.elements import Tolerance
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import GraphModel, Operator
from ulpscope.records.pairs import Pair
from ulpscope.report.progress import Advance, progress
from ulpscope.report.terminal.show_graph import GraphView, OperatorListView, OperatorsView, OperatorView
from ulpscope.shell.data import Context, DebugData, file_name
from ulpscope.shell.panels import (
    IN_A_ROW,
    ROWS,
    comparison,
    operator_list,
    operator_panel,
    panel,
    tensor_panel,
    type_table,
)
from ulpscope.shell.words import (
    COMMANDS,
    PARSE_OUTPUT,
    Values,
    command,
    complain,
    count,
    option,
    say,
    show,
    show_text,
    tolerance,
)
from ulpscope.trace.query import CallFilter
from ulpscope.workflows.convert import convert_dumps
from ulpscope.workflows.diff import pair_elements, view_tensor
from ulpscope.workflows.show.command import show as show_trace
from ulpscope.workflows.show.graph import GRAPHS_NAMED, NodeWishes, draw, show_graph
from ulpscope.workflows.tensor_lookup import ENDING, SEPARATOR, FoundTensor

PRINTED = 20
TOLERANCE = 0.001
FILES_SHOWN = 100
FILES_OFFERED = 8

_NAMED = option("-n", "--name", dest="named", action="store_true", help="before the name, if you like")
_COMPARISON = (
    option("-p", "--print", metavar="N", type=count, default=PRINTED, help="elements (default: 20)"),
    option("-al", "--atol", metavar="AL", type=tolerance, default=TOLERANCE, help="(default: 0.001)"),
    option("-rl", "--rtol", metavar="RL", type=tolerance, default=TOLERANCE, help="(default: 0.001)"),
    option("-s", "--save", action="store_true", help="write both as text, too"),
)


@command(
    "ls",
    "List operators, or count their types. A pattern may stand anywhere; * and ? are wildcards. "
    "(run ls: the files, as your own shell lists them.)",
    option("-n", "--name", metavar="NAME", help="operators with this in their name"),
    option("-t", "--type", metavar="TYPE", help="of this type"),
    option("-f", "--fusion", metavar="PASS", help="made by this fusion pass"),
    option("-k", "--kernel_name", metavar="KERNEL", help="with this kernel"),
)
def _ls(context: Context, values: Values) -> ExitCode:
    wanted = OperatorFilter(name=values.name, type=values.type, fusion_pass=values.fusion, kernel=values.kernel_name)
    if context.data.trace is not None:
        _refuse({"-f": values.fusion, "-k": values.kernel_name})
        return _show_trace(context.data.trace, CallFilter(text=values.name, op=values.type), limit=0)
    found = False
    for debug in _with_graphs(context):
        views = [show_graph(path, wanted, model=model, limit=0).found for path, model in _readable(context, debug)]
        if not wanted:
            counts = [pair for view in views if isinstance(view, GraphView) for pair in view.counts]
            found |= bool(counts)
            show(type_table(debug.name, counts))
            continue
        operators = [each for view in views if isinstance(view, OperatorListView) for each in view.operators]
        found |= bool(operators)
        show(operator_list(debug.name, operators))
    return ExitCode.OK if found else ExitCode.NOTHING


@command(
    "ni",
    "Tell all about an operator: inputs, outputs, its dumps and the reference's.",
    _NAMED,
    option("name", metavar="NAME", nargs="?", help="name, or a part of it"),
    option("-g", "--graph", metavar="GRAPH", help="in this graph"),
    option(
        "-a",
        "--attr",
        metavar="ATTR",
        nargs="?",
        const="",
        help="attributes, too: all, or those with this in their name",
    ),
    option("-s", "--save", metavar="N", type=count, help="draw what lies within N steps of it"),
)
def _ni(context: Context, values: Values) -> ExitCode:
    if values.name is None:
        # `ni -a NAME`: a word behind -a is the operator's if there is no other.
        values.name, values.attr = values.attr, "" if values.attr else None
    if not values.name:
        COMMANDS["ni"].error("the following arguments are required: NAME")
    if context.data.trace is not None:
        _refuse({"-g": values.graph, "-a": values.attr, "-s": values.save})
        return _show_trace(context.data.trace, call=values.name)
    operators, candidates, missing = _search(context, values)
    if not operators and not candidates and missing is not None:
        raise missing if values.graph is None else _not_in_graph(context, values)
    exact = [found for found in operators if sanitised(found[2].operator.name) == sanitised(values.name)]
    # In one graph a part of a name may lead to one operator, in another to several.
    for debug, path, view in exact or operators:
        drawing = None if values.save is None else _drawn(context, debug, path, view.operator, values.save)
        prefix = context.prefix(debug)
        show(operator_panel(debug.name, view, attributes=values.attr, prefix=prefix, drawing=drawing))
    if candidates and not exact:
        say(f"No operator is called {values.name}; you may mean one of these.")
        show(operator_list("Possible Operators", candidates))
    return ExitCode.OK if operators else ExitCode.NOTHING


_Found = tuple[DebugData, Path, OperatorView]


def _search(context: Context, values: Values) -> tuple[list[_Found], list[Operator], UlpscopeError | None]:
    """What a name leads to in all graphs, or may mean there; and the error of the last graph that has no such name."""
    operators: list[_Found] = []
    candidates: list[Operator] = []
    missing = None
    for debug in _with_graphs(context):
        wishes = NodeWishes(attributes=values.attr is not None, dumps=debug.dumps, reference=context.data.reference)
        for path, model in _readable(context, debug):
            wanted = OperatorFilter(graph=values.graph)
            try:
                view = show_graph(path, wanted, model=model, node=values.name, wishes=wishes, limit=0).found
            except UlpscopeError as error:
                missing = error
                continue
            if isinstance(view, OperatorsView):
                operators += [(debug, path, each) for each in view.operators]
            elif isinstance(view, OperatorListView):
                candidates += view.operators
    return operators, candidates, missing


def _not_in_graph(context: Context, values: Values) -> UlpscopeError:
    names = dict.fromkeys(graph.name for model in context.models() for graph in model.graphs)
    return UlpscopeError(
        f"no graph that is called {values.graph!r} has an operator {values.name!r}",
        expected=f"one of the graphs {', '.join(islice(names, GRAPHS_NAMED))}",
        next_step=f"ni {values.name}, without -g",
    )


def _drawn(context: Context, debug: DebugData, graph_file: Path, operator: Operator, depth: int) -> Path:
    folder = context.data.own.drawings
    name = file_name(".".join(map(sanitised, (operator.graph, operator.type, operator.name))))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UlpscopeError(
            f"{folder} cannot be made: {error.strerror}",
            expected="data in a directory that may be written",
            next_step=f"ulpscope show {graph_file} {operator.name} --svg FILE --depth {depth}",
        ) from error
    graph = next(graph for graph in context.model(graph_file).graphs if graph.name == operator.graph)
    return draw(graph, operator.name, depth=depth, path=folder / f"{debug.name}.{name}.{depth}.svg").path


def _readable(context: Context, debug: DebugData) -> list[tuple[Path, GraphModel]]:
    """One graph that cannot be read is told, and does not keep the others from being looked into."""
    found = []
    for path in debug.graphs:
        try:
            with progress(f"reading {path.name}"):
                found.append((path, context.model(path)))
        except UlpscopeError as error:
            complain(error)
    return found


def _with_graphs(context: Context) -> list[DebugData]:
    debugs = [debug for debug in context.data.debugs if debug.graphs]
    if not debugs:
        raise UlpscopeError(
            f"{context.data.root} holds no graph",
            expected="npu/debug_0/graph/ge_proto_*_Build.txt, as DUMP_GE_GRAPH=2 DUMP_GRAPH_LEVEL=3 give it",
            next_step="copy the graph there, or ulpscope show GRAPH",
        )
    return debugs


def _show_trace(path: Path, wanted: CallFilter | None = None, **how: Any) -> ExitCode:
    result = show_trace(path, wanted, **how)
    show_text(result.text)
    return result.code


def _refuse(given: dict[str, object]) -> None:
    unfit = [option for option, value in given.items() if value is not None]
    if unfit:
        raise UlpscopeError(
            f"{unfit[0]} with a trace",
            expected="a graph for it; a trace has calls, without passes and kernels",
            next_step=f"leave {unfit[0]} out",
        )


@command(
    "pt",
    "Print a tensor: of a dump or the reference by its name, or of a file.",
    _NAMED,
    option("name", metavar="FILE", help="name, a part of it, or a path; FILE::KEY, CALL::output.0"),
)
def _pt(context: Context, values: Values) -> ExitCode:
    (found,) = _found(context, values.name)
    # Elements go as text nowhere if the data is not of the directories that have a place for it.
    has_place = context.data.debugs and context.data.trace is None
    text = _text_path(context, found) if has_place else None
    show(tensor_panel(view_tensor(found, count=IN_A_ROW * ROWS, text=text)))
    return ExitCode.OK


@command(
    "cp",
    "Compare two tensors, in the layout of the network: |LEFT - RIGHT| <= AL + RL * |RIGHT|. "
    "(run cp: a file, as your own shell copies it.)",
    option("-n", "--name", dest="named", action="store_true", help="before the names, if you like"),
    option("left", metavar="LEFT", help="the tensor under suspicion"),
    option("right", metavar="RIGHT", help="the tensor that is trusted"),
    *_COMPARISON,
)
@command(
    "cn",
    "Compare two tensors: cp, as msprobe's parse calls it.",
    option("-m", "--my_data_path", dest="left", metavar="FILE", required=True, help="under suspicion"),
    option("-g", "--golden_data_path", dest="right", metavar="FILE", required=True, help="what is trusted"),
    *_COMPARISON,
)
def _cp(context: Context, values: Values) -> ExitCode:
    left, right = _found(context, values.left, values.right)
    allowed = Tolerance(values.atol, values.rtol)
    pair = pair_elements(Pair(reference=right, target=left), tolerance=allowed, count=values.print)
    texts = _saved(context, left, right) if values.save else (None, None)
    show(comparison(pair, texts))
    if not pair.elements:
        return ExitCode.NOTHING
    return ExitCode.DIFFERENCE if pair.outside else ExitCode.OK


def _found(context: Context, *names: str) -> list[FoundTensor]:
    """The first look at some thousand dumps takes seconds."""
    with progress("reading the heads of dumps"):
        return [context.tensor(name) for name in names]


@command(
    "dc",
    "Convert dumps to .npy files.",
    _NAMED,
    option("name", metavar="X", help="operator, dump file, or a file or directory of dumps"),
    option("-f", "--format", metavar="LAYOUT", help="in this layout, padding taken off: ND, NCHW, NHWC, ..."),
    option("-o", "--output", metavar="DIR", type=Path, help="as -out"),
    *PARSE_OUTPUT,
)
def _dc(context: Context, values: Values) -> ExitCode:
    sources = _sources(context, values.name)
    # A directory for each time.
    stamp = f"{time.strftime('%Y%m%d%H%M%S')}_{time.time_ns() // 1000 % 1_000_000:06d}"
    out = values.output or values.output_path or context.data.own.converted / stamp
    with progress("converting") as advance:
        result = convert_dumps(sources, Wanted(FileKind.NPY, values.format), out=out, told=_steps(advance))
    files = [file for file in sorted(out.rglob("*")) if file.is_file()]
    folder = os.path.commonpath([file.parent for file in files]) if files else out
    lines = [f" - {file.relative_to(folder)}" for file in files[:FILES_SHOWN]]
    lines += [f" and {len(files) - FILES_SHOWN:,} more"] if len(files) > FILES_SHOWN else []
    show(panel([f"SrcFile: {values.name}", *lines, f"Path: {folder}"]))
    if result.found.failures:
        say(result.text())
    return result.code


def _sources(context: Context, name: str) -> list[Path]:
    path = Path(name)
    sources = [path] if name and path.exists() else context.dumped.files(name)
    if not sources:
        names = dict.fromkeys(context.dumped.file_names())
        near = [file for file in names if sanitised(name) in file][:FILES_OFFERED]
        raise UlpscopeError(
            f"there is no dump of {name!r}",
            expected="an operator that was dumped, a dump file, or a directory of dumps"
            + "".join(f"\n    {file}" for file in near),
            next_step="name one of these" if near else "ls -n NAME lists operators; the Tab key completes their names",
        )
    return sources


def _steps(advance: Advance) -> Callable[[int, int], None]:
    done = 0

    def told(reached: int, total: int) -> None:
        nonlocal done
        advance(reached - done)
        done = reached

    return told


def _text_path(context: Context, found: FoundTensor) -> Path:
    name = found.name.replace(SEPARATOR, ".").removesuffix(ENDING)
    return context.data.own.texts / f"{file_name(name)}.txt"


def _saved(context: Context, left: FoundTensor, right: FoundTensor) -> tuple[Path, Path]:
    """Both as text; files of one name in two directories must not become one."""
    paths = _text_path(context, left), _text_path(context, right)
    if paths[0] == paths[1] and left.path != right.path:
        paths = paths[0], paths[1].with_suffix(".right.txt")
    for found, path in zip((left, right), paths, strict=True):
        view = view_tensor(found, count=0, text=path)
        if view.text is None:
            raise UlpscopeError(
                f"{path} was not written: {view.problem}",
                expected="a directory that may be written, and not too many elements",
                next_step="leave -s out",
            )
    return paths


@command(
    "pk",
    "Tell the calls of a dump that ptdbg or msprobe wrote, or of any other run.",
    option("-f", "--file", metavar="FILE|DIR", type=Path, required=True, help="dump.pkl, dump.json, ..."),
    option("-n", "--name", metavar="NAME", help="calls with this in their name"),
)
def _pk(context: Context, values: Values) -> ExitCode:
    return _show_trace(values.file, CallFilter(text=values.name), limit=0)
