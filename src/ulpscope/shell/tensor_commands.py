"""`pt`, `cp`, `cn` and `dc`: tensors printed, compared and converted."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ulpscope.dialects.ascend.converting import Wanted
from ulpscope.dialects.files.array_writing import FileKind
from ulpscope.graph.names import sanitised
from ulpscope.numerics.pairs.elements import Tolerance
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.pairs import Pair
from ulpscope.report.progress import Advance, progress
from ulpscope.shell.data import Context, file_name
from ulpscope.shell.panels import IN_A_ROW, ROWS, comparison, panel, tensor_panel
from ulpscope.shell.telling import say, show
from ulpscope.shell.words import Command, Values, Words, add_parse_output, count, tolerance
from ulpscope.workflows.convert import convert_dumps
from ulpscope.workflows.diff import pair_elements, view_tensor
from ulpscope.workflows.tensor_lookup import ENDING, SEPARATOR, FoundTensor

PRINTED = 20
TOLERANCE = 0.001
FILES_SHOWN = 100
FILES_OFFERED = 8


def pt_command() -> Command:
    words = Words("pt", "Print a tensor: of a dump or the reference by its name, or of a file.")
    words.add_argument("-n", "--name", dest="named", action="store_true", help="before the name, if you like")
    words.add_argument("name", metavar="FILE", help="name, a part of it, or a path; FILE::KEY, CALL::output.0")
    return Command(words, _pt)


def cp_command() -> Command:
    words = Words(
        "cp",
        "Compare two tensors, in the layout of the network: |LEFT - RIGHT| <= AL + RL * |RIGHT|. "
        "(run cp: a file, as your own shell copies it.)",
    )
    words.add_argument("-n", "--name", dest="named", action="store_true", help="before the names, if you like")
    words.add_argument("left", metavar="LEFT", help="the tensor under suspicion")
    words.add_argument("right", metavar="RIGHT", help="the tensor that is trusted")
    _add_comparison(words)
    return Command(words, _cp)


def cn_command() -> Command:
    words = Words("cn", "Compare two tensors: cp, as msprobe's parse calls it.")
    words.add_argument("-m", "--my_data_path", dest="left", metavar="FILE", required=True, help="under suspicion")
    words.add_argument("-g", "--golden_data_path", dest="right", metavar="FILE", required=True, help="what is trusted")
    _add_comparison(words)
    return Command(words, _cp)


def _add_comparison(words: Words) -> None:
    words.add_argument("-p", "--print", metavar="N", type=count, default=PRINTED, help="elements (default: 20)")
    words.add_argument("-al", "--atol", metavar="AL", type=tolerance, default=TOLERANCE, help="(default: 0.001)")
    words.add_argument("-rl", "--rtol", metavar="RL", type=tolerance, default=TOLERANCE, help="(default: 0.001)")
    words.add_argument("-s", "--save", action="store_true", help="write both as text, too")


def dc_command() -> Command:
    words = Words("dc", "Convert dumps to .npy files.")
    words.add_argument("-n", "--name", dest="named", action="store_true", help="before the name, if you like")
    words.add_argument("name", metavar="X", help="operator, dump file, or a file or directory of dumps")
    words.add_argument(
        "-f", "--format", metavar="LAYOUT", help="in this layout, padding taken off: ND, NCHW, NHWC, ..."
    )
    words.add_argument("-o", "--output", metavar="DIR", type=Path, help="as -out")
    add_parse_output(words)
    return Command(words, _dc)


def _pt(context: Context, values: Values) -> ExitCode:
    (found,) = _found(context, values.name)
    show(tensor_panel(view_tensor(found, count=IN_A_ROW * ROWS, text=_text_file(context, found))))
    return ExitCode.OK


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


def _dc(context: Context, values: Values) -> ExitCode:
    sources = _sources(context, values.name)
    out = values.output or values.output_path or context.data.own.converted / _stamp()
    with progress("converting") as advance:
        result = convert_dumps(sources, Wanted(FileKind.NPY, values.format), out=out, told=_steps(advance))
    files = [file for file in sorted(out.rglob("*")) if file.is_file()]
    folder = os.path.commonpath([file.parent for file in files]) if files else out
    names = [str(file.relative_to(folder)) for file in files]
    show(panel([f"SrcFile: {values.name}", *_listed(names), f"Path: {folder}"]))
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


def _listed(names: list[str]) -> Iterator[str]:
    yield from (f" - {name}" for name in names[:FILES_SHOWN])
    if len(names) > FILES_SHOWN:
        yield f" and {len(names) - FILES_SHOWN:,} more"


def _text_file(context: Context, found: FoundTensor) -> Path | None:
    """Where a tensor's elements go as text: nowhere if the data is not of the directories that have a place for it."""
    if not context.data.debugs or context.data.trace is not None:
        return None
    return _text_path(context, found)


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


def _stamp() -> str:
    """A directory for each time."""
    return f"{time.strftime('%Y%m%d%H%M%S')}_{time.time_ns() // 1000 % 1_000_000:06d}"
