"""Elements and pairs of elements, from wherever they lie."""
# mypy: ignore-errors

import triton
import triton.language as tl

from ulpscope.capture.torch.fused.numbers import BFLOAT16, COLUMNS, DENSE, FLOAT16, FLOAT32, PAIRED, STRIDED


@triton.jit
def offset_of(index, layout):
    """Where element (or pair) `index` lies: sizes of the inner dimensions with their reciprocals, strides."""
    size0, mul0, shift0, size1, mul1, shift1, size2, mul2, shift2, stride0, stride1, stride2, stride3 = layout
    index = index.to(tl.uint32)
    outer = tl.umulhi(index, mul0.to(tl.uint32)) >> shift0.to(tl.uint32)
    offset = (index - outer * size0.to(tl.uint32)).to(tl.int64) * stride0
    index = outer
    outer = tl.umulhi(index, mul1.to(tl.uint32)) >> shift1.to(tl.uint32)
    offset += (index - outer * size1.to(tl.uint32)).to(tl.int64) * stride1
    index = outer
    outer = tl.umulhi(index, mul2.to(tl.uint32)) >> shift2.to(tl.uint32)
    offset += (index - outer * size2.to(tl.uint32)).to(tl.int64) * stride2
    return offset + outer.to(tl.int64) * stride3


@triton.jit
def as_float32(raw, KIND: tl.constexpr):
    """Numbers of the low bits of int32."""
    if KIND == BFLOAT16:
        return (raw << 16).to(tl.float32, bitcast=True)
    elif KIND == FLOAT16:
        return raw.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return raw.to(tl.float32, bitcast=True)


@triton.jit
def load_element(address, index, inside, layout, ITEM: tl.constexpr, LIES: tl.constexpr):
    """An element's bits, sign-extended to int64; 0 where it is not inside."""
    if LIES == DENSE:
        offset = index.to(tl.int64)
    elif LIES == PAIRED:
        offset = offset_of(index >> 1, layout) * 2 + (index & 1)
    else:
        offset = offset_of(index, layout)
    if ITEM == 1:
        return tl.load(address.to(tl.pointer_type(tl.int8)) + offset, mask=inside, other=0).to(tl.int64)
    elif ITEM == 2:
        return tl.load(address.to(tl.pointer_type(tl.int16)) + offset, mask=inside, other=0).to(tl.int64)
    elif ITEM == 4:
        return tl.load(address.to(tl.pointer_type(tl.int32)) + offset, mask=inside, other=0).to(tl.int64)
    else:
        return tl.load(address.to(tl.pointer_type(tl.int64)) + offset, mask=inside, other=0)


@triton.jit
def _load_words(address, place, inside, WIDE: tl.constexpr, CUT: tl.constexpr):
    """Words of 32 or 64 bits; 0 where they are not inside, if some may not be."""
    pointer = address.to(tl.pointer_type(tl.int64 if WIDE else tl.int32)) + place
    if CUT:
        return tl.load(pointer, mask=inside, other=0)
    else:
        return tl.load(pointer)


@triton.jit
def _load_shorts(address, place, inside, CUT: tl.constexpr):
    pointer = address.to(tl.pointer_type(tl.int16)) + place
    if CUT:
        return tl.load(pointer, mask=inside, other=0).to(tl.int32)
    else:
        return tl.load(pointer).to(tl.int32)


@triton.jit
def load_pair(address, pair, row, left, layout, KIND: tl.constexpr, LIES: tl.constexpr, CUT: tl.constexpr):
    """Both numbers of the pair `row` rows below pair `pair`, and its one or two words; `left` elements are inside."""
    inside0 = row * (2 * COLUMNS) < left
    inside1 = row * (2 * COLUMNS) + 1 < left
    pair += row * COLUMNS
    if LIES == STRIDED:
        if KIND == FLOAT32:
            word0 = _load_words(address, offset_of(pair * 2, layout), inside0, False, CUT)
            word1 = _load_words(address, offset_of(pair * 2 + 1, layout), inside1, False, CUT)
        else:
            lower = _load_shorts(address, offset_of(pair * 2, layout), inside0, CUT)
            upper = _load_shorts(address, offset_of(pair * 2 + 1, layout), inside1, CUT)
            word0 = (lower & 0xFFFF) | (upper << 16)
            word1 = word0
    else:
        place = pair if LIES == DENSE else offset_of(pair, layout)
        if KIND == FLOAT32:
            both = _load_words(address, place, inside0, True, CUT)
            word0 = both.to(tl.int32)
            word1 = (both >> 32).to(tl.int32)
            if CUT:
                word1 = tl.where(inside1, word1, 0)
        else:
            word0 = _load_words(address, place, inside0, False, CUT)
            if CUT:
                word0 = tl.where(inside1, word0, word0 & 0xFFFF)
            word1 = word0
    if KIND == FLOAT32:
        number0 = word0.to(tl.float32, bitcast=True)
        number1 = word1.to(tl.float32, bitcast=True)
    elif KIND == BFLOAT16:
        number0 = (word0 << 16).to(tl.float32, bitcast=True)
        number1 = (word0 & -65536).to(tl.float32, bitcast=True)
    else:
        number0 = as_float32(word0 & 0xFFFF, KIND)
        number1 = as_float32(word0 >> 16, KIND)
    return number0, number1, word0, word1
