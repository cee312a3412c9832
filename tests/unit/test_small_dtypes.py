"""Types of ml_dtypes: an older version, which TensorFlow 2.15 asks for, lacks some, which is said."""

import types
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from ulpscope.dialects.ascend.dump_file.records import array_type
from ulpscope.numerics.dtypes import numpy_dtype
from ulpscope.records.errors import UlpscopeError


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What version 0.3.2 has, for all that is looked up."""
    stub = types.SimpleNamespace(__version__="0.3.2", bfloat16=ml_dtypes.bfloat16)
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", stub)
    numpy_dtype.cache_clear()
    yield
    numpy_dtype.cache_clear()


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("name", ["float8_e8m0fnu", "float6_e2m3fn", "float4_e2m1fn"])
def test_a_type_that_ml_dtypes_does_not_know_yet(name: str) -> None:
    with pytest.raises(UlpscopeError) as error:
        array_type(name)
    assert error.value.seen == f"elements of type {name}, which ml_dtypes 0.3.2 does not know"
    assert error.value.expected == "ml_dtypes 0.5 or later"


@pytest.mark.usefixtures("older")
def test_types_that_it_knows() -> None:
    assert numpy_dtype("bfloat16") == np.dtype(ml_dtypes.bfloat16)
    assert numpy_dtype("float16") == np.dtype(np.float16)
