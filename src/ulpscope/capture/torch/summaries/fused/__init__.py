"""Summaries in one read of a CUDA tensor, by kernels in C++ (cuda/) that NVRTC compiles when they are first needed.

A program is four warps. It takes some blocks of a value and leaves one partial row; `join` adds a value's partial rows
up in a fixed order, so that equal contents have equal rows. A warp has its next block brought into its own memory,
from wherever the elements lie (staging.h), while it adds up the last one. In a block, lane k owns sums k and k + 32 of
the sketch: it reads the pairs of the two columns that count into them, so that nothing crosses lanes before the end.

Blocks of floats are first read as if they were ordinary: every number below 2**29 and none so small that its square is
lost. Sums then need no selection: those of bfloat16 are made by the tensor cores (tensor_cores.h), the others lane by
lane (ordinary.h). If the sums say that something is not ordinary, the warp's blocks are read again with everything
looked at (anything.h). Doubles and integers always go that way.
"""
