"""A copy past the caches, compiled by numba. Import only through copying.py: importing this imports numba."""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg"

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ulpscope.numerics.summaries.kernel_blocks import copy, kernel

LINE = 64
"""Bytes of a cache line."""


@intrinsic
def _stream_line(context, target, source):
    def generate(context, builder, signature, arguments):
        line = ir.VectorType(ir.IntType(64), LINE // 8).as_pointer()
        to, read = (builder.inttoptr(address, line) for address in arguments)
        stored = builder.store(builder.load(read, align=1), to, align=LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _fence(context):
    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@kernel
def stream(target, source, size):
    """Copies bytes to an address that is a multiple of LINE."""
    whole = size // LINE * LINE
    for start in range(0, whole, LINE):
        _stream_line(target + start, source + start)
    copy(target + whole, source + whole, size - whole)
    _fence()  # such stores wait for nobody: another thread must not find what was there before
