"""GE's graphs in protobuf's text format, ge_proto_*_Build.txt, and in JSON, the form that atc makes of them."""

from ulpscope.dialects.graphs.ge_model import OPERATOR_PATH, ge_model, ge_operator
from ulpscope.dialects.graphs.messages import Message
from ulpscope.records.graphs import GraphFormat, GraphModel

FINISHED = {OPERATOR_PATH: ge_operator}


def is_ge_text(message: Message) -> bool:
    """Whether a message that was read with FINISHED is a ModelDef."""
    return any(isinstance(graph, dict) and "op" in graph for graph in message.get("graph", ()))


def ge_text_model(message: Message) -> GraphModel:
    return ge_model(message, GraphFormat.GE_TEXT)
