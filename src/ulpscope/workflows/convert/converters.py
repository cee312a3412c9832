"""Converters of layouts that a user names on the command line: Python files, executed because the user asked for it.

convert_NC1HWC0_to_MYLAYOUT.py      def convert(shape_from, shape_to, array): ...

is what msaccucmp takes: the shapes as lists, the elements flat. A fourth argument, if there is one, gets the number of
groups of a convolution.
"""

import inspect
import re
import runpy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ulpscope.numerics.layouts.orders import AnyArray, Conversion, Converter
from ulpscope.records.errors import UlpscopeError

_NAME = re.compile(r"convert_(?P<source>\w+?)_to_(?P<target>\w+)\.py")
_GROUPS_PLACE = 3


def load_converters(files: Iterable[Path]) -> dict[tuple[str, str], Converter]:
    """The converters of some files, by source and target layout."""
    return {_layouts(file): _adapted(_function(file), file) for file in files}


def _layouts(file: Path) -> tuple[str, str]:
    found = _NAME.fullmatch(file.name)
    if found is None:
        raise _bad_converter(file, "its name does not say from which layout to which it converts")
    return found["source"], found["target"]


def _function(file: Path) -> Callable[..., Any]:
    try:
        content = runpy.run_path(str(file))
    except Exception as error:  # whatever the user's file raises is told as what it is
        raise _bad_converter(file, f"cannot be executed ({type(error).__name__}: {error})") from error
    function = content.get("convert")
    if not callable(function):
        raise _bad_converter(file, "has no function convert")
    return function  # type: ignore[no-any-return]


def _adapted(function: Callable[..., Any], file: Path) -> Converter:
    takes_groups = len(inspect.signature(function).parameters) > _GROUPS_PLACE

    def convert(array: AnyArray, wanted: Conversion) -> AnyArray:
        flat = np.ascontiguousarray(array).reshape(-1)
        groups = (wanted.groups,) if takes_groups else ()
        try:
            found = np.asarray(function(list(array.shape), list(wanted.shape or ()), flat, *groups))
        except Exception as error:  # see above
            raise _bad_converter(file, f"failed ({type(error).__name__}: {error})") from error
        if found.dtype != array.dtype:
            raise _bad_converter(file, f"was given {array.dtype} and gave {found.dtype}")
        return found

    return convert


def _bad_converter(file: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"the converter {file} {problem}",
        expected="a file convert_A_to_B.py with a function convert(shape_from, shape_to, array) or (..., groups), "
        "which gives an array of the same elements",
        next_step="see docs/convert.md for an example",
    )
