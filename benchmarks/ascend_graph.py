"""How long a large GE graph takes to open: the first time, when it is parsed, and from then on, out of the cache.

    python benchmarks/ascend_graph.py                      10,000 operators
    python benchmarks/ascend_graph.py --operators 50000

The graph is made here, in protobuf's text format as GE writes it, with the attributes that its operators really have.
`ulpscope show` runs as a user would run it, Python's start included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LAYER = (
    ("MatMulV2", "MatMul", "FRACTAL_NZ", ("MatMul", "BiasAdd"), "MatMulBiasAddFusionPass"),
    ("TransData", "trans_TransData", "ND", (), None),
    ("Cast", "trans_Cast", "ND", (), None),
    ("LayerNorm", "LayerNorm/moments", "ND", ("moments/mean", "batchnorm/add_1"), "LayerNormFusionPass"),
    ("Add", "add", "ND", None, None),
)


def model_text(operators: int) -> str:
    """A graph of layers, each operator reading the one before and, now and then, one long before."""
    lines = ['name: "ge_default_20260101000000_1"', "graph {", '  name: "ge_default_20260101000000_1"']
    names: list[str] = []
    for number in range(operators):
        kind, suffix, layout, originals, fusion = LAYER[number % len(LAYER)]
        name = f"bert/encoder/layer_{number // len(LAYER)}/attention/output/dense/{suffix}_{number}"
        inputs = [f"{names[-1]}:0"] if names else []
        if number > 50 and kind in ("Add", "MatMulV2"):
            inputs.append(f"{names[-40]}:0")
        lines += operator_lines(number, name, kind, layout, inputs=inputs, originals=originals, fusion=fusion)
        names.append(name)
    return "\n".join([*lines, "}", ""])


def operator_lines(
    number: int,
    name: str,
    kind: str,
    layout: str,
    *,
    inputs: list[str],
    originals: tuple[str, ...] | None,
    fusion: str | None,
) -> Iterator[str]:
    scope = name.rsplit("/", 1)[0]
    yield from ("  op {", f'    name: "{name}"', f'    type: "{kind}"', *(f'    input: "{each}"' for each in inputs))
    texts = {
        "_ge_attr_op_kernel_lib_name": "AIcoreEngine",
        f"{name}_kernelname": f"te_{kind.lower()}_{number:08x}_0__kernel0",
        f"{name}_metadata": '{"binFileName":"te_x","magic":"RT_DEV_BINARY_MAGIC_ELF"}'.replace('"', '\\"'),
        "_session_graph_id": "0_1",
        "_op_aicore_num": "32",
        "_composite_engine_name": "",
        "tvm_magic": "RT_DEV_BINARY_MAGIC_ELF",
    }
    for key, text in texts.items():
        yield from attribute(key, [f's: "{text}"'], depth=2)
    for key in (
        "_op_impl_mode_enum",
        "_fe_imply_type",
        "_fuzz_build",
        "tbe_op_atomic_index",
        "fusion_scope",
        "block_dim",
    ):
        yield from attribute(key, [f"i: {number % 97}"], depth=2)
    if originals is not None:
        words = [f's: "{scope}/{original}"' for original in originals]
        yield from attribute(
            "_datadump_original_op_names", ["list {", *words, "val_type: VT_LIST_STRING", "}"], depth=2
        )
    if fusion is not None:
        yield from attribute("pass_name", ["list {", f's: "{fusion}"', "val_type: VT_LIST_STRING", "}"], depth=2)
    yield from ("    has_out_attr: true", f"    id: {number}", "    stream_id: 1")
    for each in inputs:
        yield f'    src_name: "{each.rpartition(":")[0]}"'
    for _ in inputs:
        yield from desc_lines("input_desc", layout, origin=None)
    yield from desc_lines("output_desc", layout, origin=f"{scope}/{kind}")
    yield "  }"


def desc_lines(side: str, layout: str, *, origin: str | None) -> Iterator[str]:
    yield from (f"    {side} {{", "      dtype: DT_FLOAT16", "      shape {")
    yield from (f"        dim: {size}" for size in (48, 256, 16, 16))
    yield from ("      }", f'      layout: "{layout}"')
    sizes = [f"i: {size}" for size in (4096, 768)]
    texts = {"origin_format": "ND", "format_for_int": "29", "_tensor_memory_scope": "0", "origin_data_type": "DT_FLOAT"}
    if origin is not None:
        texts |= {
            "_datadump_origin_name": origin,
            "_datadump_origin_format": "ND",
            "_datadump_origin_data_type": "DT_FLOAT",
        }
        yield from attribute("_datadump_origin_output_index", ["i: 0"], depth=3)
    for key, text in texts.items():
        yield from attribute(key, [f's: "{text}"'], depth=3)
    yield from attribute("origin_shape", ["list {", *sizes, "val_type: VT_LIST_INT", "}"], depth=3)
    yield from attribute("origin_shape_initialized", ["b: true"], depth=3)
    yield from ("      size: 6291488", '      device_type: "NPU"', "      real_dim_cnt: 2", "    }")


def attribute(key: str, value: list[str], *, depth: int) -> Iterator[str]:
    blanks = "  " * depth
    yield from (f"{blanks}attr {{", f'{blanks}  key: "{key}"', f"{blanks}  value {{")
    yield from (f"{blanks}    {line}" for line in value)
    yield from (f"{blanks}  }}", f"{blanks}}}")


def timed(*words: str, environment: dict[str, str]) -> tuple[float, str]:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "ulpscope", *words], env=environment, check=True, capture_output=True, encoding="utf-8"
    )
    return time.perf_counter() - start, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=10_000)
    operators = parser.parse_args().operators
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "ge_proto_00000001_graph_1_Build.txt"
        path.write_text(model_text(operators), encoding="utf-8")
        environment = {**os.environ, "XDG_CACHE_HOME": scratch}
        print(f"{operators:,} operators, {path.stat().st_size / 1e6:.1f} MB of text")
        first, told = timed("show", str(path), environment=environment)
        again, told_again = timed("show", str(path), environment=environment)
        middle = f"bert/encoder/layer_{operators // 10}/attention/output/dense/MatMul_{operators // 2}"
        node, _ = timed(
            "show", str(path), middle, "--svg", f"{scratch}/near.svg", "--depth", "4", environment=environment
        )
    print(f"parsed {first:.2f} s, from the cache {again:.2f} s, one operator with a drawing {node:.2f} s")
    if told != told_again:
        sys.exit("the cache tells something else than the file")


if __name__ == "__main__":
    main()
