"""Element types as graph files number and name them, in ulpscope's names."""

from ulpscope.dialects.ascend.dump_file.content import DATA_TYPES

TENSORFLOW_DTYPES = dict(
    enumerate(
        "undefined float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 bfloat16 "
        "qint16 quint16 uint16 complex128 float16 resource variant uint32 uint64 float8_e5m2 float8_e4m3fn "
        "float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2fnuz int4 uint4 int2 uint2".split()
    )
)
"""By their numbers in tensorflow/core/framework/types.proto; 100 more is a reference to one of the type."""

ONNX_DTYPES = dict(
    enumerate(
        "undefined float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64 complex64 "
        "complex128 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz uint4 int4 float4_e2m1fn "
        "float8_e8m0fnu uint2 int2 float6_e2m3fn float6_e3m2fn".split()
    )
)
"""By their numbers in onnx.proto's TensorProto.DataType."""

_NAMED = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "bf16": "bfloat16",
    "float8_e8m0": "float8_e8m0fnu",
    "float6_e3m2": "float6_e3m2fn",
    "float6_e2m3": "float6_e2m3fn",
    "float4_e2m1": "float4_e2m1fn",
}

_REFERENCE = 100


def named_dtype(name: str) -> str:
    """`DT_FLOAT16` as float16, `DT_FLOAT_REF` as float32."""
    return _plain(name.removeprefix("DT_").removesuffix("_REF"))


def _plain(name: str) -> str:
    return _NAMED.get(name.lower(), name.lower())


def ge_dtype(found: int | str) -> str:
    """By name, or by a number of ge.proto, which are those of a dump file's header."""
    if isinstance(found, str):
        return named_dtype(found)
    return _plain(DATA_TYPES[found]) if 0 <= found < len(DATA_TYPES) else str(found)


def tensorflow_dtype(found: int | str) -> str:
    if isinstance(found, str):
        return named_dtype(found)
    return TENSORFLOW_DTYPES.get(found % _REFERENCE if found > _REFERENCE else found, str(found))


def onnx_dtype(found: int | str) -> str:
    if isinstance(found, str):
        return named_dtype(found)
    return ONNX_DTYPES.get(found, str(found))
