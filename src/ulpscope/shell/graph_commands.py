"""`ls`, `ni` and `pk`: the operators of the graphs, or the calls of a trace."""

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ulpscope.graph.names import sanitised
from ulpscope.graph.query import OperatorFilter
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.graphs import GraphModel, Operator
from ulpscope.report.progress import progress
from ulpscope.report.terminal.views import GraphView, OperatorListView, OperatorsView, OperatorView
from ulpscope.shell.data import Context, DebugData, file_name
from ulpscope.shell.panels import operator_list, operator_panel, type_table
from ulpscope.shell.telling import complain, say, show, show_text
from ulpscope.shell.words import Command, Values, Words, count
from ulpscope.workflows.show.graph import GRAPHS_NAMED, NodeWishes, draw, show_graph


def ls_command() -> Command:
    words = Words(
        "ls",
        "List operators, or count their types. A pattern may stand anywhere; * and ? are wildcards. "
        "(run ls: the files, as your own shell lists them.)",
    )
    words.add_argument("-n", "--name", metavar="NAME", help="operators with this in their name")
    words.add_argument("-t", "--type", metavar="TYPE", help="of this type")
    words.add_argument("-f", "--fusion", metavar="PASS", help="made by this fusion pass")
    words.add_argument("-k", "--kernel_name", metavar="KERNEL", help="with this kernel")
    return Command(words, _ls)


def ni_command() -> Command:
    words = Words("ni", "Tell all about an operator: inputs, outputs, its dumps and the reference's.")
    words.add_argument("-n", "--name", dest="named", action="store_true", help="before the name, if you like")
    words.add_argument("name", metavar="NAME", nargs="?", help="name, or a part of it")
    words.add_argument("-g", "--graph", metavar="GRAPH", help="in this graph")
    words.add_argument(
        "-a",
        "--attr",
        metavar="ATTR",
        nargs="?",
        const="",
        help="attributes, too: all, or those with this in their name",
    )
    words.add_argument("-s", "--save", metavar="N", type=count, help="draw what lies within N steps of it")
    return Command(words, _ni)


def pk_command() -> Command:
    words = Words("pk", "Tell the calls of a dump that ptdbg or msprobe wrote, or of any other run.")
    words.add_argument("-f", "--file", metavar="FILE|DIR", type=Path, required=True, help="dump.pkl, dump.json, ...")
    words.add_argument("-n", "--name", metavar="NAME", help="calls with this in their name")
    return Command(words, lambda context, values: _calls_of(values.file, values.name, None))


def _ls(context: Context, values: Values) -> ExitCode:
    wanted = OperatorFilter(name=values.name, type=values.type, fusion_pass=values.fusion, kernel=values.kernel_name)
    if context.data.trace is not None:
        return _ls_trace(context.data.trace, values)
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


def _ni(context: Context, values: Values) -> ExitCode:
    if values.name is None:
        # `ni -a NAME`: a word behind -a is the operator's if there is no other.
        values.name, values.attr = values.attr, "" if values.attr else None
    if not values.name:
        ni_command().words.error("the following arguments are required: NAME")
    if context.data.trace is not None:
        return _ni_trace(context.data.trace, values)
    found = _search(context, values)
    if not found.operators and not found.candidates and found.error is not None:
        raise found.error if values.graph is None else _not_in_graph(context, values)
    exact = [one for one in found.operators if sanitised(one.view.operator.name) == sanitised(values.name)]
    # In one graph a part of a name may lead to one operator, in another to several.
    for one in exact or found.operators:
        drawing = None if values.save is None else _drawn(context, one, values.save)
        prefix = context.prefix(one.debug)
        show(operator_panel(one.debug.name, one.view, attributes=values.attr, prefix=prefix, drawing=drawing))
    if found.candidates and not exact:
        say(f"No operator is called {values.name}; you may mean one of these.")
        show(operator_list("Possible Operators", found.candidates))
    return ExitCode.OK if found.operators else ExitCode.NOTHING


@dataclass(frozen=True, slots=True)
class _FoundOperator:
    debug: DebugData
    path: Path
    view: OperatorView


@dataclass(slots=True)
class _Found:
    """What a name led to in all graphs."""

    operators: list[_FoundOperator] = field(default_factory=list)
    candidates: list[Operator] = field(default_factory=list)
    error: UlpscopeError | None = None
    """Of the last graph in which there is no such name."""


def _search(context: Context, values: Values) -> _Found:
    found = _Found()
    for debug in _with_graphs(context):
        wishes = NodeWishes(attributes=values.attr is not None, dumps=debug.dumps, reference=context.data.reference)
        for path, model in _readable(context, debug):
            wanted = OperatorFilter(graph=values.graph)
            try:
                view = show_graph(path, wanted, model=model, node=values.name, wishes=wishes, limit=0).found
            except UlpscopeError as error:
                found.error = error
                continue
            if isinstance(view, OperatorsView):
                found.operators += [_FoundOperator(debug, path, each) for each in view.operators]
            elif isinstance(view, OperatorListView):
                found.candidates += view.operators
    return found


def _not_in_graph(context: Context, values: Values) -> UlpscopeError:
    names = dict.fromkeys(graph.name for model in context.models() for graph in model.graphs)
    return UlpscopeError(
        f"no graph that is called {values.graph!r} has an operator {values.name!r}",
        expected=f"one of the graphs {', '.join(islice(names, GRAPHS_NAMED))}",
        next_step=f"ni {values.name}, without -g",
    )


def _drawn(context: Context, one: _FoundOperator, depth: int) -> Path:
    operator, folder = one.view.operator, context.data.own.drawings
    name = file_name(".".join(map(sanitised, (operator.graph, operator.type, operator.name))))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UlpscopeError(
            f"{folder} cannot be made: {error.strerror}",
            expected="data in a directory that may be written",
            next_step=f"ulpscope show {one.path} {operator.name} --svg FILE --depth {depth}",
        ) from error
    graph = next(graph for graph in context.model(one.path).graphs if graph.name == operator.graph)
    return draw(graph, operator.name, depth=depth, path=folder / f"{one.debug.name}.{name}.{depth}.svg").path


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


def _ls_trace(path: Path, values: Values) -> ExitCode:
    _refuse(values, {"-f": values.fusion, "-k": values.kernel_name})
    return _calls_of(path, values.name, values.type)


def _calls_of(path: Path, name: str | None, op: str | None) -> ExitCode:
    from ulpscope.trace.query import CallFilter
    from ulpscope.workflows.show.command import show as show_trace

    result = show_trace(path, CallFilter(text=name, op=op), limit=0)
    show_text(result.text)
    return result.code


def _ni_trace(path: Path, values: Values) -> ExitCode:
    from ulpscope.workflows.show.command import show as show_trace

    _refuse(values, {"-g": values.graph, "-a": values.attr, "-s": values.save})
    result = show_trace(path, call=values.name)
    show_text(result.text)
    return result.code


def _refuse(values: Values, given: dict[str, object]) -> None:
    unfit = [option for option, value in given.items() if value is not None]
    if unfit:
        raise UlpscopeError(
            f"{unfit[0]} with a trace",
            expected="a graph for it; a trace has calls, without passes and kernels",
            next_step=f"leave {unfit[0]} out",
        )
