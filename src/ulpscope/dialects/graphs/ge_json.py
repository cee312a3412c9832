"""GE's graphs as JSON, the form that atc writes: the text's tree, with lists for maps and null for empty messages."""

import json
from typing import Any

from ulpscope.dialects.graphs.ge_model import OPERATOR_PATH, ge_model, ge_operator
from ulpscope.dialects.graphs.messages import DEEPEST, GraphFileError, Message
from ulpscope.records.graphs import GraphFormat, GraphModel


def read_ge_json(text: str) -> GraphModel:
    """The model that a JSON text holds."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise GraphFileError("is nested too deeply") from error
    except ValueError as error:
        raise GraphFileError(f"is not JSON, or was not written to its end: {error}") from error
    graphs = content.get("graph") if isinstance(content, dict) else None
    if not isinstance(graphs, list) or not any(isinstance(graph, dict) and "op" in graph for graph in graphs):
        raise GraphFileError("is JSON, but has no field graph that is a list of graphs with op")
    return ge_model(_message(content, path=""), GraphFormat.GE_JSON)


def _message(content: dict[str, Any], *, path: str, depth: int = 0) -> Message:
    if depth > DEEPEST:
        raise GraphFileError(f"nests messages more than {DEEPEST} deep")
    message: Message = {}
    for name, value in content.items():
        values = value if isinstance(value, list) else [value]
        below = f"{path}.{name}" if path else name
        message[name] = [_value({} if item is None else item, path=below, depth=depth + 1) for item in values]
    return message


def _value(item: Any, *, path: str, depth: int) -> Any:
    if not isinstance(item, dict):
        return item
    message = _message(item, path=path, depth=depth)
    return ge_operator(message) if path == OPERATOR_PATH else message
