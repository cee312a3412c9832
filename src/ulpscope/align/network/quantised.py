"""Which operators compute in integers: what lies between one that quantises and one that dequantises.

Their numbers are scaled, and the original network has nothing like them. The two ends of such a stretch are known by
their types, or by the names that AMCT gives them.
"""

import re
from collections.abc import Iterable

from ulpscope.records.graphs import Operator

# As AMCT names them in networks of Caffe, TensorFlow and ONNX.
_QUANTISES = re.compile(r"_quant_layer|/AscendQuant|/AscendWeightQuant|\.quant|\.weight_quant")
_DEQUANTISES = re.compile(r"_dequant_layer|_anti_quant_layer|/AscendDequant|/AntiQuant|\.dequant|\.anti_quant")
_DEQUANT_ENDS = ("_dequant_layer", "AscendDequant", "_dequant")
# As GE calls them; products of integers that scale their results at once are an end, too.
_QUANTISING = re.compile(r"(?:Ascend|AscendWeight|Dynamic)Quant(?:V\d)?")
_DEQUANTISING = re.compile(r"(?:Ascend)?(?:Dequant|AntiQuant)\w*|Quant(?:Batch)?Mat[Mm]ul\w*")
_INTEGERS = "int8"


def quantised_operators(operators: Iterable[Operator]) -> frozenset[tuple[str, str]]:
    """Graph and name of each operator that has no counterpart; `operators` in the order in which they run."""
    inside: dict[tuple[str, str, int], bool] = {}
    found = set()
    for operator in operators:
        reads = any(
            each.source is not None and inside.get((operator.graph, each.source.operator, each.source.output), False)
            for each in operator.inputs
        )
        ends = [_ends(operator, position) for position in range(len(operator.outputs))]
        for position, over in enumerate(ends):
            begins = _begins(operator, position)
            inside[operator.graph, operator.name, position] = begins or (reads and not over)
        if reads and not (ends and all(ends)):
            found.add((operator.graph, operator.name))
    return frozenset(found)


def makes_integers(operator: Operator) -> bool:
    """Whether its outputs are quantised, and compared with nothing."""
    return _QUANTISING.fullmatch(operator.type) is not None


def reads_integers(operator: Operator) -> bool:
    """Whether its inputs are quantised, and compared with nothing."""
    return _DEQUANTISING.fullmatch(operator.type) is not None or operator.name.endswith(_DEQUANT_ENDS)


def _begins(operator: Operator, output: int) -> bool:
    quantises = makes_integers(operator) or _is_called(operator, _QUANTISES)
    return quantises and operator.outputs[output].dtype == _INTEGERS


def _ends(operator: Operator, output: int) -> bool:
    dequantises = reads_integers(operator) or _is_called(operator, _DEQUANTISES)
    return dequantises and "float" in operator.outputs[output].dtype


def _is_called(operator: Operator, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.search(operator.name) or pattern.search("".join(operator.originals or ())))
