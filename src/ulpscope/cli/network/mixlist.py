"""Write lists of mixed precision for an Ascend compiler: operators that findings name stay in float32.

  ulpscope mixlist result                                      types that findings of overflow or compare name
  ulpscope mixlist result --out ops_info.json                  and the file that keeps them in float32
  ulpscope mixlist ops_info.json --white Conv2D --out more.json
                                                               more of a file that is there
  ulpscope mixlist ops_info.json                               checks a file

RESULT is what overflow or compare wrote with --out. Types are those of the NPU's compiler (MatMulV2), not operators.
Exit codes: 0; 2 a file cannot be read or is wrong; 3 the findings name no type.
"""

import argparse
from pathlib import Path

from ulpscope.cli.command import Parser, Subparsers, add_command, given, tell
from ulpscope.records.errors import UlpscopeError


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `mixlist` to the command line."""
    usage = "ulpscope mixlist RESULT|FILE... [--black|--white|--gray TYPE,TYPE] [--out FILE] [--json]"
    parser = add_command(subparsers, "mixlist", doc=__doc__, usage=usage)
    parser.add_argument("sources", metavar="RESULT|FILE", nargs="*", type=Path, help="results, or a file of lists")
    for name, meaning in (
        ("black", "stay in float32"),
        ("white", "may become float16"),
        ("gray", "follow the one before"),
    ):
        parser.add_argument(f"--{name}", metavar="TYPE,TYPE", type=_types, default=(), help=f"types that {meaning}")
    parser.add_argument("--out", "-o", metavar="FILE", type=Path, help="file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace that file")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Gather, perhaps write, and give the exit code."""
    from ulpscope.workflows.mixlist import mixlist

    if not args.sources and not given(args, ("black", "white", "gray")):
        raise UlpscopeError(
            "neither a result nor a type",
            expected="what ulpscope overflow or compare wrote with --out, or --black TYPE",
            next_step="ulpscope overflow DUMP --out result; ulpscope mixlist result --out ops_info.json",
        )
    if args.overwrite and args.out is None:
        raise UlpscopeError("--overwrite without --out", expected="a file to write", next_step="add --out FILE")
    added = {f"{name}-list": getattr(args, name) for name in ("black", "white", "gray")}
    return tell(args, mixlist(args.sources, added=added, out=args.out, overwrite=args.overwrite))


def _types(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
