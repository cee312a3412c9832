"""Looks again at a block some of whose numbers lie in bins below the three that were counted.

Written in PTX, since only there a warp can do by itself what the others of its program need not do.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from ulpscope.numerics import constants

_PAIRS = constants.BLOCK_ELEMENTS // 2
_AT_ONCE = 8
_EACH = range(_AT_ONCE)


def _count_below(read: str) -> str:
    """Four bins at a time, downwards: each lane counts its numbers in the bytes of `packed`, lane k keeps bin k.

    $1 is how many are missing, $2 the bin to begin below, $3 the lane; `read` fills w0 to w7, from pair `place` on.
    """
    add = "\n".join(
        f"shr.u32 shift, w{k}, {lowest}; and.b32 shift, shift, 0xF8; sub.s32 shift, shift, base;"
        f"shl.b32 shift, 1, shift; add.s32 packed, packed, shift;"
        for k in _EACH
        for lowest in (7, 23)
    )
    return f"""
{{
.reg .pred more, own;
.reg .b32 missing, first, base, packed, place, shift, even, odd;
.reg .b32 {", ".join(f"w{k}" for k in _EACH)};
.reg .b64 pointer;
mov.b32 $0, 0;
redux.sync.add.s32 missing, $1, -1;
setp.gt.s32 more, missing, 0;
@!more bra.uni END;
mov.b32 first, $2;
NEXT_BINS:
sub.s32 first, first, 4;
shl.b32 base, first, 3;
mov.b32 packed, 0;
mov.b32 place, $3;
NEXT_PAIRS:
{read}
{add}
add.s32 place, place, {32 * _AT_ONCE};
setp.lt.s32 more, place, {_PAIRS + 32};
@more bra.uni NEXT_PAIRS;
and.b32 even, packed, 0x00FF00FF;
shr.u32 odd, packed, 8;
and.b32 odd, odd, 0x00FF00FF;
redux.sync.add.s32 even, even, -1;
redux.sync.add.s32 odd, odd, -1;
sub.s32 place, $3, first;
and.b32 shift, place, 1;
setp.ne.s32 own, shift, 0;
selp.b32 packed, odd, even, own;
and.b32 shift, place, 2;
shl.b32 shift, shift, 3;
shr.u32 packed, packed, shift;
and.b32 packed, packed, 0xFFFF;
setp.lt.u32 own, place, 4;
setp.ne.and.s32 own, $3, 0, own;
selp.b32 packed, packed, 0, own;
add.s32 $0, $0, packed;
redux.sync.add.s32 packed, packed, -1;
sub.s32 missing, missing, packed;
setp.gt.s32 more, missing, 0;
setp.gt.and.s32 more, first, 1, more;
@more bra.uni NEXT_BINS;
END:
}}
"""


# Where it is filled up, zeros count into the lowest bin, which is nobody's.
_READ_DENSE = "mad.wide.s32 pointer, place, 4, $4;\n" + "\n".join(
    f"setp.lt.s32 own, place, {_PAIRS - 32 * k}; mov.b32 w{k}, 0; @own ld.global.b32 w{k}, [pointer + {128 * k}];"
    for k in _EACH
)
_READ_RUNS = "\n".join(
    f"add.s32 shift, place, {32 * k}; min.s32 shift, shift, {_PAIRS - 1}; add.s32 shift, shift, $5;"
    "mul.hi.u32 even, shift, $7; shr.u32 even, even, $8; shfl.sync.idx.b32 even, $6, even, 31, -1;"
    "add.s32 shift, shift, even; mad.wide.s32 pointer, shift, 4, $4;"
    f"setp.lt.s32 own, place, {_PAIRS - 32 * k}; mov.b32 w{k}, 0; @own ld.global.b32 w{k}, [pointer];"
    for k in _EACH
)
_DENSE: tl.constexpr = tl.constexpr(_count_below(_READ_DENSE))
_RUNS: tl.constexpr = tl.constexpr(_count_below(_READ_RUNS))


@triton.jit
def count_below_dense(missing, bin, lane, block):
    """How many of a block's numbers lie in bin `lane`, if that is below `bin`, as long as some are missing.

    Those that lanes miss add up to the warp's; `block` is an address.
    """
    return tl.inline_asm_elementwise(
        _DENSE, "=&r,r,r,r,l", [missing, bin, lane, block], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def count_below_runs(missing, bin, lane, address, into, runs, mul, shift):
    """The same of a block that lies in runs."""
    return tl.inline_asm_elementwise(
        _RUNS,
        "=&r,r,r,r,l,r,r,r,r",
        [missing, bin, lane, address, into, runs, mul, shift],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
