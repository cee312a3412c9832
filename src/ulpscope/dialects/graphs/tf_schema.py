"""The fields of TensorFlow's graph.proto and meta_graph.proto that a graph is made of."""

from ulpscope.dialects.graphs.wire_messages import Schemas
from ulpscope.dialects.wire import Scalar

TENSORFLOW_SCHEMAS: Schemas = {
    "SavedModel": {1: ("saved_model_schema_version", Scalar.INT), 2: ("meta_graphs", "MetaGraphDef")},
    "MetaGraphDef": {1: ("meta_info_def", "MetaInfoDef"), 2: ("graph_def", "GraphDef")},
    "MetaInfoDef": {4: ("tags", Scalar.BYTES), 5: ("tensorflow_version", Scalar.BYTES)},
    "GraphDef": {1: ("node", "NodeDef"), 2: ("library", "FunctionDefLibrary"), 4: ("versions", "VersionDef")},
    "VersionDef": {1: ("producer", Scalar.INT), 2: ("min_consumer", Scalar.INT)},
    "FunctionDefLibrary": {1: ("function", "FunctionDef")},
    "FunctionDef": {1: ("signature", "OpDef"), 3: ("node_def", "NodeDef")},
    "OpDef": {1: ("name", Scalar.BYTES)},
    "NodeDef": {
        1: ("name", Scalar.BYTES),
        2: ("op", Scalar.BYTES),
        3: ("input", Scalar.BYTES),
        4: ("device", Scalar.BYTES),
        5: ("attr", "AttrEntry"),
    },
    "AttrEntry": {1: ("key", Scalar.BYTES), 2: ("value", "AttrValue")},
    "AttrValue": {
        1: ("list", "ListValue"),
        2: ("s", Scalar.BYTES),
        3: ("i", Scalar.INT),
        4: ("f", Scalar.FLOAT),
        5: ("b", Scalar.BOOL),
        6: ("type", Scalar.INT),
        7: ("shape", "TensorShapeProto"),
        8: ("tensor", "TensorProto"),
        9: ("placeholder", Scalar.BYTES),
        10: ("func", "NameAttrList"),
    },
    "ListValue": {
        2: ("s", Scalar.BYTES),
        3: ("i", Scalar.INT),
        4: ("f", Scalar.FLOAT),
        5: ("b", Scalar.BOOL),
        6: ("type", Scalar.INT),
        7: ("shape", "TensorShapeProto"),
        8: ("tensor", "TensorProto"),
        9: ("func", "NameAttrList"),
    },
    "NameAttrList": {1: ("name", Scalar.BYTES)},
    "TensorShapeProto": {2: ("dim", "Dim"), 3: ("unknown_rank", Scalar.BOOL)},
    "Dim": {1: ("size", Scalar.INT)},
    "TensorProto": {
        1: ("dtype", Scalar.INT),
        2: ("tensor_shape", "TensorShapeProto"),
        4: ("tensor_content", Scalar.BYTES),
    },
}
