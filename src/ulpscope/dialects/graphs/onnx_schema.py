"""The fields of onnx.proto that a graph is made of; contents of tensors are passed over."""

from ulpscope.dialects.graphs.wire_messages import Schemas
from ulpscope.dialects.wire import Scalar

ONNX_SCHEMAS: Schemas = {
    "ModelProto": {
        1: ("ir_version", Scalar.INT),
        2: ("producer_name", Scalar.BYTES),
        3: ("producer_version", Scalar.BYTES),
        7: ("graph", "GraphProto"),
        8: ("opset_import", "OperatorSetIdProto"),
        14: ("metadata_props", "StringStringEntryProto"),
        25: ("functions", "FunctionProto"),
    },
    "OperatorSetIdProto": {1: ("domain", Scalar.BYTES), 2: ("version", Scalar.INT)},
    "StringStringEntryProto": {1: ("key", Scalar.BYTES), 2: ("value", Scalar.BYTES)},
    "GraphProto": {
        1: ("node", "NodeProto"),
        2: ("name", Scalar.BYTES),
        5: ("initializer", "TensorProto"),
        11: ("input", "ValueInfoProto"),
        12: ("output", "ValueInfoProto"),
        13: ("value_info", "ValueInfoProto"),
    },
    "FunctionProto": {
        1: ("name", Scalar.BYTES),
        7: ("node", "NodeProto"),
        10: ("domain", Scalar.BYTES),
        12: ("value_info", "ValueInfoProto"),
    },
    "NodeProto": {
        1: ("input", Scalar.BYTES),
        2: ("output", Scalar.BYTES),
        3: ("name", Scalar.BYTES),
        4: ("op_type", Scalar.BYTES),
        5: ("attribute", "AttributeProto"),
        7: ("domain", Scalar.BYTES),
    },
    "AttributeProto": {
        1: ("name", Scalar.BYTES),
        2: ("f", Scalar.FLOAT),
        3: ("i", Scalar.INT),
        4: ("s", Scalar.BYTES),
        5: ("t", "TensorProto"),
        6: ("g", "GraphProto"),
        7: ("floats", Scalar.FLOAT),
        8: ("ints", Scalar.INT),
        9: ("strings", Scalar.BYTES),
        10: ("tensors", "TensorProto"),
        11: ("graphs", "GraphProto"),
        20: ("type", Scalar.INT),
        21: ("ref_attr_name", Scalar.BYTES),
    },
    "TensorProto": {1: ("dims", Scalar.INT), 2: ("data_type", Scalar.INT), 8: ("name", Scalar.BYTES)},
    "ValueInfoProto": {1: ("name", Scalar.BYTES), 2: ("type", "TypeProto")},
    "TypeProto": {1: ("tensor_type", "TensorType")},
    "TensorType": {1: ("elem_type", Scalar.INT), 2: ("shape", "TensorShapeProto")},
    "TensorShapeProto": {1: ("dim", "Dimension")},
    "Dimension": {1: ("dim_value", Scalar.INT), 2: ("dim_param", Scalar.BYTES)},
}

ATTRIBUTE_KINDS = (
    "UNDEFINED FLOAT INT STRING TENSOR GRAPH FLOATS INTS STRINGS TENSORS GRAPHS SPARSE_TENSOR SPARSE_TENSORS "
    "TYPE_PROTO TYPE_PROTOS"
).split()
"""AttributeProto.AttributeType by number."""
