"""The text of a script that shows one call of a trace, and of the test beside it.

Nothing of a trace is written as code but names that led to a function of torch, and literals of a closed set of kinds.
"""

import keyword
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ulpscope.numerics.dtypes import DTYPES, DtypeKind
from ulpscope.records.checks import OpReproduction, Reproduction, ScriptLimits
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.words.language import bytes_text, shown_name, shown_text

LINES = 30
"""What a script may have at most."""
WIDTH = 120

_HEAD = '''"""{name} on a device and in float64: python repro.py [DEVICE]"""

{imports}
'''

_READ = """
raw = pathlib.Path(__file__).with_name("data.safetensors").read_bytes()
start, data, results, wrong = 8 + int.from_bytes(raw[:8], "little"), {{}}, [], False
for name, t in json.loads(raw[8:start]).items():
    dtype = {{{types}}}[t["dtype"]]
    data[name] = torch.frombuffer(bytearray(raw[start:][slice(*t["data_offsets"])]), dtype=dtype).reshape(t["shape"])
"""

_JUDGE = """for place in results[0]:
    got, true = {got}, {true}
    errors = torch.where((got == true.to(got.dtype)) | (got.isnan() & true.isnan()), 0.0, got.double() - true)
    scaled, n, large = errors / data["expected." + place], got.numel() ** 0.5, errors.abs() > {floor} * true.abs().max()
    found = [(scaled * large).abs().max(), scaled.square().mean().sqrt(), (errors * true).sign().mean().abs()]
    limits = [{limits}]  # largest, rms and one-sided error: what ulpscope check allows
    wrong |= (fails := not all(each <= limit for each, limit in zip(found, limits)))
    at = torch.unravel_index(scaled.abs().argmax(), got.shape)
    ulp = {ulp}
    told = f"{{errors[at].abs() / ulp:.3g}} ulp at {{[*map(int, at)]}}: {{got[at]:.9g}}, exact {{true[at]:.9g}};"
    print(place, "WRONG" if fails else "right", told, *(f"{{a:.3g}} (limit {{b:.3g}})" for a, b in zip(found, limits)))
sys.exit(wrong)
"""
_ULP = "torch.finfo(got.dtype).eps * 2.0 ** true[at].abs().clamp_min(torch.finfo(got.dtype).tiny).log2().floor()"

TEST = '''"""The same as a test: it fails while the call is wrong on the device."""

import subprocess
import sys
from pathlib import Path


def test_{function}():
    script = Path(__file__).with_name("repro.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
'''


def script_text(shown: Reproduction, limits: ScriptLimits) -> str:
    """The whole script, in at most 30 lines."""
    packages = ["json, pathlib, sys", "torch", *shown.imports]
    text = _whole(shown, limits, "\n".join(f"import {package}" for package in packages))
    return text if _count(text) <= LINES else _whole(shown, limits, f"import {', '.join(packages)}")


def _whole(shown: Reproduction, limits: ScriptLimits, imports: str) -> str:
    types = ", ".join(f'"{stored}": torch.{dtype}' for stored, dtype in sorted(shown.stored.items()))
    # What may stand in a docstring.
    name = re.sub(r"[^A-Za-z0-9_.,:/()@ -]", "_", shown.name)
    head = _HEAD.format(name=name, imports=imports) + _READ.format(types=types)
    head += "".join(f"{line}\n" for line in _settings(shown))
    got, true = _elements(shown)
    rms = f"{limits.rms} + {limits.rms_scatter} / n"
    allowed = f"{limits.largest}, {rms}, max({limits.one_sided}, {limits.one_sided_scatter} / n)"
    tail = _JUDGE.format(got=got, true=true, floor=f"{limits.floor:g}", limits=allowed, ulp=_ulp(shown))
    return f"{head}{_run(shown, LINES - _count(head + tail))}{tail}"


def _count(text: str) -> int:
    return len(text.splitlines())


def test_text(shown: Reproduction | OpReproduction) -> str:
    """The test beside the script."""
    return TEST.format(function=re.sub(r"[^A-Za-z0-9]+", "_", shown.name.split(" ")[0]).strip("_").lower() or "call")


def _settings(shown: Reproduction) -> Iterator[str]:
    if shown.axes:
        put = [f"{quoted(place)}: data[{quoted(place)}].permute{_tuple(axes)}" for place, axes in shown.axes.items()]
        yield f"data |= {{{', '.join(put)}}}  # as they lay in memory"
    if shown.full_float32 and shown.device.startswith("cuda"):
        yield "torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # they round float32"


def _run(shown: Reproduction, room: int) -> str:
    lines = [*_inputs(shown)]
    call = [f"    out = {shown.function}({arguments_text(shown.arguments, shown.firsts)})"]
    results = ", ".join(f"{quoted(place)}: {_result(shown, place)}" for place in shown.places)
    after = [f"    results.append({{{results}}})"]
    if shown.differentiated:
        outputs = ", ".join(_output(shown, place) for place in shown.sent)
        sent = ", ".join(tensor_text(f"grad_output.{place}") for place in shown.sent)
        after.insert(0, f"    grads = torch.autograd.grad([{outputs}], leaves, [{sent}], allow_unused=True)")
    spare = room - len(lines) - len(after)
    if shown.autocast is not None:
        device = "torch.device(device).type"
        lines.append(f"    with torch.autocast({device}, torch.{shown.autocast}, enabled=not high):")
        call, spare = [f"    {call[0]}"], spare - 1
    if len(call[0]) > WIDTH and spare >= 3:
        indent = " " * (len(call[0]) - len(call[0].lstrip()))
        head, _, arguments = call[0].partition("(")
        call = [f"{head}(", f"{indent}    {arguments[:-1]}", f"{indent})"]
    return "".join(f"{line}\n" for line in [*lines, *call, *after])


def _inputs(shown: Reproduction) -> Iterator[str]:
    yield f'for device, high in ((sys.argv[1:] or [{_default_device(shown.device)}])[0], False), ("cpu", True):'
    high = "torch.float64 if high and t.is_floating_point() else t.dtype"
    if any(dtype.startswith("complex") for dtype in shown.stored.values()):
        high = f"torch.complex128 if high and t.is_complex() else {high}"
    yield f"    x = {{name: t.to(device, {high}) for name, t in data.items()}}"
    if shown.differentiated:
        yield f"    leaves = [x[name].requires_grad_() for name in {_tuple(shown.differentiated)}]"
    if shown.writes:
        yield "    x = {name: t.clone() for name, t in x.items()}  # the call writes what it is given"


def _default_device(device: str) -> str:
    """The device by its name, or the CPU where it is not there."""
    if device == "cpu":
        return quoted(device)
    room = "cuda" if device.startswith("cuda") else "accelerator"
    return f'{quoted(device)} if torch.{room}.is_available() else "cpu"'


def _result(shown: Reproduction, place: str) -> str:
    if place.startswith("written."):
        return tensor_text(place.removeprefix("written."))
    if place.startswith("grad."):
        return f"grads[{shown.differentiated.index(place.removeprefix('grad.'))}]"
    return _output(shown, place)


def _output(shown: Reproduction, place: str) -> str:
    if shown.outputs == 0:
        return tensor_text("args.0")
    return "out" if shown.outputs == 1 else f"out[{int(place.removeprefix('output.'))}]"


def _elements(shown: Reproduction) -> tuple[str, str]:
    got, true = "results[0][place].detach().cpu()", "results[1][place].detach()"
    if DtypeKind.COMPLEX in _kinds(shown):
        got, true = (f"torch.view_as_real({each}) if {each}.is_complex() else {each}" for each in (got, true))
    return got, f"({true}).double()" if " " in true else f"{true}.double()"


def _ulp(shown: Reproduction) -> str:
    whole = {DtypeKind.INT, DtypeKind.BOOL} & _kinds(shown)
    if not whole:
        return _ULP
    return "1.0" if whole == _kinds(shown) else f"{_ULP} if got.is_floating_point() else 1.0"


def _kinds(shown: Reproduction) -> set[DtypeKind]:
    return {DTYPES[dtype].kind for dtype in shown.dtypes}


def _tuple(items: tuple[object, ...]) -> str:
    inner = ", ".join(quoted(item) if isinstance(item, str) else str(item) for item in items)
    return f"({inner},)" if len(items) == 1 else f"({inner})"


def repro_text(*, out: str, call: str, data: str, variant: str, lines: int, data_bytes: int, command: str) -> str:
    """What `ulpscope repro` answers."""
    changed = "" if variant == "recorded" else f", variant {variant}"
    return (
        f"{shown_name(call)} as a script: {out}/repro.py ({lines} lines), the same as a test: {out}/test_repro.py\n"
        f"Its tensors: {out}/data.safetensors ({bytes_text(data_bytes)}, {data} data{changed})\n"
        f"Next: {shown_text(command)}\n"
    )


Firsts = Mapping[str, str]

# Exact runs compute in these what has the dtypes before them.
_HIGHER = {
    **dict.fromkeys(("float16", "bfloat16", "float32"), "float64"),
    **dict.fromkeys(("complex32", "complex64"), "complex128"),
}


def tensor_text(place: str) -> str:
    return f"x[{quoted(place)}]"


def arguments_text(encoded: Mapping[str, Any], firsts: Firsts) -> str:
    """What stands between the parentheses of the call."""
    texts = [_text(item, firsts) for item in encoded.get("args", [])]
    for name, item in encoded.get("kwargs", {}).items():
        is_name = name.isidentifier() and not keyword.iskeyword(name)
        text = _text(item, firsts)
        texts.append(f"{name}={text}" if is_name else f"**{{{quoted(name)}: {text}}}")
    return ", ".join(texts)


def _text(encoded: Any, firsts: Firsts) -> str:
    if isinstance(encoded, str):
        return quoted(encoded)
    if encoded is None or isinstance(encoded, bool | int | float):
        return repr(encoded)
    if isinstance(encoded, list):
        return f"[{_texts(encoded, firsts)}]"
    ((word, content), *_) = encoded.items()
    write = _WRITERS.get(word)
    if write is None:
        raise _no_literal(word)
    return write(content, firsts)


def literal(plain: Any) -> str:
    """A number, a text or None as Python."""
    if isinstance(plain, str):
        return quoted(plain)
    return _float(repr(plain), {}) if isinstance(plain, float) else repr(plain)


def quoted(text: str) -> str:
    """A text as a literal; whatever it holds stays inside."""
    plain = repr(text)
    return plain if '"' in text or plain.startswith('"') else f'"{plain[1:-1]}"'


def _texts(items: list[Any], firsts: Firsts) -> str:
    return ", ".join(_text(item, firsts) for item in items)


def _literal_tuple(content: list[Any], firsts: Firsts) -> str:
    return f"({_texts(content, firsts)}{',' if len(content) == 1 else ''})"


def _dict(content: list[list[Any]], firsts: Firsts) -> str:
    return f"{{{', '.join(f'{_text(key, firsts)}: {_text(item, firsts)}' for key, item in content)}}}"


def _float(content: str, _firsts: Firsts) -> str:
    number = float(content)
    return f'float("{number}")' if not math.isfinite(number) else repr(number)


def _dtype(content: str, firsts: Firsts) -> str:
    own = _word(content, firsts)
    return f"(torch.{_HIGHER[content]} if high else {own})" if content in _HIGHER else own


def _word(content: str, _firsts: Firsts) -> str:
    """A dtype, a layout, a memory format: each is a name in torch."""
    if not (content.isidentifier() and content.isascii()):
        raise _no_literal(content)
    return f"torch.{content}"


def _no_literal(word: str) -> UlpscopeError:
    return UlpscopeError(
        f"an argument of the call is {word.removeprefix('$')!r}, which a script cannot write",
        expected="tensors, numbers, texts, slices, dtypes and lists of them",
        next_step="choose another call",
    )


_WRITERS: dict[str, Callable[[Any, Firsts], str]] = {
    "$tensor": lambda content, firsts: tensor_text(firsts.get(content, content)),
    "$tuple": _literal_tuple,
    "$size": _literal_tuple,
    "$dict": _dict,
    "$slice": lambda content, firsts: f"slice({_texts(content, firsts)})",
    "$complex": lambda content, firsts: f"complex({_texts(content, firsts)})",
    "$float": _float,
    "$ellipsis": lambda _content, _firsts: "...",
    "$device": lambda _content, _firsts: "device",
    "$dtype": _dtype,
    "$layout": _word,
    "$memory_format": _word,
}
