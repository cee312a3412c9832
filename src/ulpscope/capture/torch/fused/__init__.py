"""Summaries in one read of a CUDA tensor, compiled by Triton. Only launching.py is imported without triton.

A program is one warp, or four of dense bfloat16. It takes some blocks and leaves one partial row; `join` adds a value's
partial rows up in a fixed order, so that equal contents have equal rows. In a block, lane k owns sums k and k + 32 of
the sketch: it reads the pairs of the two columns that count into them, so that nothing crosses lanes before the end.

Blocks of floats are first read as if they were ordinary: every number below 2**29 and none so small that its square is
lost, all exponents within four bins around those of a sample (ordinary.py). Sums and counts then need no selection. If
exponents lie elsewhere, these are counted again; if the squares say that something else is not ordinary, the program's
blocks are read again with everything looked at (anything.py). Doubles and integers always go that way: they are rare.

Whole blocks of bfloat16 that lie densely, or in long runs, are added up by the tensor cores (tensor_cores.py).
"""
