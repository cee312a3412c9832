"""Which operators compute in integers: what lies between one that quantises and one that dequantises.

Their numbers are scaled, and the original network has nothing like them. AMCT names the two ends of such a stretch.
"""

import re
from collections.abc import Iterable

from ulpscope.records.graphs import Operator

# As AMCT names them in networks of Caffe, TensorFlow and ONNX.
_QUANTISES = re.compile(r"_quant_layer|/AscendQuant|/AscendWeightQuant|\.quant|\.weight_quant")
_DEQUANTISES = re.compile(r"_dequant_layer|_anti_quant_layer|/AscendDequant|/AntiQuant|\.dequant|\.anti_quant")
_DEQUANT_ENDS = ("_dequant_layer", "AscendDequant", "_dequant")
_INTEGERS, _FLOATS = "int8", "float16"


def quantised_operators(operators: Iterable[Operator]) -> frozenset[tuple[str, str]]:
    """Graph and name of each operator that has no counterpart; `operators` in the order in which they run."""
    inside: dict[tuple[str, str, int], bool] = {}
    found = set()
    for operator in operators:
        reads_integers = any(
            each.source is not None and inside.get((operator.graph, each.source.operator, each.source.output), False)
            for each in operator.inputs
        )
        ends = [_ends(operator, position) for position in range(len(operator.outputs))]
        for position, over in enumerate(ends):
            begins = _begins(operator, position)
            inside[operator.graph, operator.name, position] = begins or (reads_integers and not over)
        if reads_integers and not (ends and all(ends)):
            found.add((operator.graph, operator.name))
    return frozenset(found)


def makes_integers(operator: Operator) -> bool:
    """Whether its outputs are quantised, and compared with nothing."""
    return operator.type == "AscendQuant"


def reads_integers(operator: Operator) -> bool:
    """Whether its inputs are quantised, and compared with nothing."""
    return operator.type == "AscendDequant" or operator.name.endswith(_DEQUANT_ENDS)


def _begins(operator: Operator, output: int) -> bool:
    return _is_called(operator, _QUANTISES) and operator.outputs[output].dtype == _INTEGERS


def _ends(operator: Operator, output: int) -> bool:
    return _is_called(operator, _DEQUANTISES) and operator.outputs[output].dtype == _FLOATS


def _is_called(operator: Operator, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.search(operator.name) or pattern.search("".join(operator.originals or ())))
