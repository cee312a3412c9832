"""Small networks written by hand: a graph, dumps as a device writes them, and what a framework made of the same."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from make_ascend_dumps import FIRST_TIME, Tensor, file_bytes
from ulpscope.workflows.network.command import NetworkOptions, NetworkResult, compare_network

Array = NDArray[Any]
DTYPES = {
    "float16": "DT_FLOAT16", "float32": "DT_FLOAT", "int8": "DT_INT8", "int32": "DT_INT32", "uint8": "DT_UINT8",
}  # fmt: skip
NAMES = "_datadump_original_op_names"
NOTHING = Tensor(np.zeros(0, np.float32), "ND", ())
"""An input that is not connected, as dumps have it that have it at all."""


@dataclass
class Network:
    """Writes operators into a graph, their dumps, and what the reference made of them."""

    root: Path
    operators: list[dict[str, Any]] = field(default_factory=list)
    made: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("dump", "reference"):
            (self.root / name).mkdir(parents=True)

    def add(
        self,
        name: str,
        kind: str,
        *outputs: Array,
        reads: Sequence[str] = (),
        reference: Array | Sequence[Array] | None = None,
        inserted: bool = False,
        dumped: bool = True,
        inputs: Sequence[Tensor] | None = None,
        time: int | None = None,
        origin: str | None = None,
        described: int | None = None,
        layout: str = "ND",
        attributes: Mapping[str, Any] | None = None,
        head: str | None = None,
    ) -> None:
        """An operator that reads outputs (`x`, `x:1`, or an empty text where nothing is connected).

        `head` is what its dump calls it, if that is not its name.
        """
        number = len(self.operators)
        sources = [each if ":" in each or not each else f"{each}:0" for each in reads]
        extra = [{"key": key, "value": value} for key, value in (attributes or {}).items()]
        if inserted:
            extra.append({"key": NAMES, "value": {"list": {"val_type": 1}}})
        descs = [_desc(output, origin, place, layout) for place, output in enumerate(outputs[:described])]
        self.operators.append(
            {"name": name, "type": kind, "id": number, "input": sources, "output_desc": descs, "attr": extra}
        )
        if dumped:
            read = [Tensor(self.made[each]) for each in sources if each] if inputs is None else inputs
            content = file_bytes(
                name if head is None else head, inputs=read, outputs=[Tensor(output, layout) for output in outputs]
            )
            stamp = FIRST_TIME + (number if time is None else time)
            file = f"{kind}.{name.translate(str.maketrans('./', '__'))}.{number}.0.{stamp}"
            (self.root / "dump" / file).write_bytes(content)
        self.made |= {f"{name}:{place}": output for place, output in enumerate(outputs)}
        trusted = [reference] if isinstance(reference, np.ndarray) else reference or []
        for place, array in enumerate(trusted):
            file = f"{(origin or name).translate(str.maketrans('./', '__'))}.{place}.{FIRST_TIME + number}.npy"
            np.save(self.root / "reference" / file, array)

    def graph(self, name: str = "graph.json") -> Path:
        path = self.root / name
        path.write_text(json.dumps({"name": "net", "graph": [{"name": "net", "op": self.operators}]}))
        return path

    def compare(self, options: NetworkOptions | None = None, *, reference: Path | None = None) -> NetworkResult:
        trusted = reference or self.root / "reference"
        return compare_network(trusted, self.root / "dump", self.graph(), options or NetworkOptions())


def _desc(output: Array, origin: str | None, place: int, layout: str) -> dict[str, Any]:
    noted = {"_datadump_origin_name": {"s": origin}, "_datadump_origin_output_index": {"i": place}} if origin else {}
    noted["_datadump_origin_format"] = {"s": layout}
    attributes = [{"key": key, "value": value} for key, value in noted.items()]
    shape = {"dim": list(output.shape)}
    return {"dtype": DTYPES[output.dtype.name], "layout": layout, "shape": shape, "attr": attributes}


def half(array: Array) -> Array:
    return array.astype(np.float16)


def modules(result: NetworkResult) -> list[str | None]:
    return [finding.module for finding in result.findings]


def random(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def spoilt(array: Array) -> Array:
    """With one row that is wrong."""
    found = array.copy()
    found[1] *= found.dtype.type(1.5)
    return found


def data(network: Network, name: str, array: Array) -> Array:
    network.add(name, "Data", array, reference=array, dumped=False)
    return array
