"""The text of a script that shows one op of a trace of TensorFlow's; the test beside it is that of any script.

Nothing of a trace is written as code but names that led to an op of TensorFlow, and literals of a closed set of kinds.
"""

import re
from typing import Any

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.records.checks import OpReproduction, ScriptLimits
from ulpscope.report.repro_script import literal, quoted, tensor_text

_HEAD = '''"""{name} on a device and in float64: python repro.py [DEVICE]"""

import json, pathlib, sys
import numpy as np
import tensorflow as tf

raw = pathlib.Path(__file__).with_name("data.safetensors").read_bytes()
start, data, results, wrong = 8 + int.from_bytes(raw[:8], "little"), {{}}, [], False
for name, t in json.loads(raw[8:start]).items():
    dtype = {{{types}}}[t["dtype"]].as_numpy_dtype
    data[name] = np.frombuffer(raw[start:][slice(*t["data_offsets"])], dtype).reshape(t["shape"])
'''

_JUDGE = """for place, got in results[0].items():
    true, expected = results[1][place].astype(float), data["expected." + place]
    spacing = {{{spacing}}}
    bits, lowest = spacing.get(got.dtype.name, (0, 0))
    with np.errstate(all="ignore"):
        right = (got == true.astype(got.dtype)) | (np.isnan(true) & (got != got))
        errors = np.where(right, 0.0, got.astype(float) - true)
        scaled, n, large = errors / expected, got.size**0.5, np.abs(errors) > {floor} * np.abs(true).max()
    found = [np.abs(scaled * large).max(), (scaled**2).mean() ** 0.5, abs(np.sign(errors * true).mean())]
    limits = [{limits}]  # largest, rms and one-sided error: what ulpscope check allows
    wrong |= (fails := not all(each <= limit for each, limit in zip(found, limits)))
    at = np.unravel_index(np.abs(scaled).argmax(), got.shape)
    ulp = 2.0 ** (max(np.floor(np.log2(abs(true[at]) or 1e-300)), lowest) - bits) if bits else 1.0
    told = f"{{abs(errors[at]) / ulp:.3g}} ulp at {{[*map(int, at)]}}: {{float(got[at]):.9g}}, exact {{true[at]:.9g}};"
    print(place, "WRONG" if fails else "right", told, *(f"{{a:.3g}} (limit {{b:.3g}})" for a, b in zip(found, limits)))
sys.exit(bool(wrong))
"""


def op_script_text(shown: OpReproduction, limits: ScriptLimits) -> str:
    """The whole script."""
    types = ", ".join(f'"{stored}": tf.{dtype}' for stored, dtype in sorted(shown.stored.items()))
    name = re.sub(r"[^A-Za-z0-9_.,:/()@ -]", "_", shown.name)  # what may stand in a docstring
    rms = f"{limits.rms} + {limits.rms_scatter} / n"
    allowed = f"{limits.largest}, {rms}, max({limits.one_sided}, {limits.one_sided_scatter} / n)"
    tail = _JUDGE.format(spacing=_spacing(), floor=f"{limits.floor:g}", limits=allowed)
    return "\n".join([_HEAD.format(name=name, types=types).rstrip("\n"), *_run(shown), tail])


def _spacing() -> str:
    """Of each float type, how many binades below a number its neighbours' distance is, and the lowest binade."""
    names = ("float64", "float32", "float16", "bfloat16")
    return ", ".join(f'"{name}": ({_bits(name)}, {_lowest(name)})' for name in names)


def _bits(name: str) -> int:
    found = 0
    while 2.0 ** -(found + 1) > DTYPES[name].unit_roundoff:
        found += 1
    return found


def _lowest(name: str) -> int:
    found = 0
    while 2.0**found > DTYPES[name].smallest_normal:
        found -= 1
    return found


def _run(shown: OpReproduction) -> list[str]:
    runs = f"((sys.argv[1:] or [{_default_device(shown.device)}])[0], False)"
    lines = [
        "low = (tf.float32, tf.float16, tf.bfloat16)",
        f'for device, high in ({runs}, ("CPU:0", True)):' if shown.has_float64 else f"for device, high in ({runs},):",
        "    with tf.device(device), tf.GradientTape() as tape:",
        "        x = {name: tf.constant(t) for name, t in data.items()}",
        "        x = {name: tf.cast(t, tf.float64) if high and t.dtype in low else t for name, t in x.items()}",
    ]
    if shown.differentiated:
        leaves = ", ".join(tensor_text(place) for place in shown.differentiated)
        lines += [f"        leaves = [{leaves}]", "        tape.watch(leaves)"]
    lines.append(f"        out = {shown.function}({_arguments(shown)})")
    if shown.differentiated:
        outputs = ", ".join(_output(shown, place) for place in shown.sent)
        sent = ", ".join(tensor_text(f"grad_output.{place}") for place in shown.sent)
        lines.append(f"        grads = tape.gradient([{outputs}], leaves, output_gradients=[{sent}])")
        lines.append("        grads = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]")
    results = ", ".join(f"{quoted(place)}: {_result(shown, place)}.numpy()" for place in shown.places)
    lines.append(f"    results.append({{{results}}})")
    if not shown.has_float64:
        lines.append('results.append({place: data["exact." + place] for place in results[0]})  # no float64 kernel')
    return lines


def _default_device(device: str) -> str:
    """The device by TensorFlow's name, or the CPU where it is not there."""
    kind, _, number = device.upper().partition(":")
    named = quoted(f"{kind}:{number or 0}")
    return named if kind == "CPU" else f'{named} if tf.config.list_physical_devices("{kind}") else "CPU:0"'


def _arguments(shown: OpReproduction) -> str:
    operands = (f"{name}={_operand(places)}" for name, places in shown.operands)
    attributes = (f"{name}={_attribute(value)}" for name, value in shown.attributes.items())
    return ", ".join((*operands, *attributes))


def _operand(places: tuple[str, ...] | str) -> str:
    return tensor_text(places) if isinstance(places, str) else f"[{', '.join(map(tensor_text, places))}]"


def _attribute(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_attribute, value))}]"
    if isinstance(value, dict) and "$dtype" in value:
        word = value["$dtype"]
        own = f"tf.{word}"
        return f"tf.float64 if high else {own}" if word in ("float32", "float16", "bfloat16") else own
    return literal(value)


def _result(shown: OpReproduction, place: str) -> str:
    if place.startswith("grad."):
        return f"grads[{shown.differentiated.index(place.removeprefix('grad.'))}]"
    return _output(shown, place)


def _output(shown: OpReproduction, place: str) -> str:
    return f"out[{int(place.removeprefix('output.'))}]" if shown.several else "out"
