"""Loaded once by the fork server of zoo.captures, so that not every run has to import torch and load kernels."""

import numpy as np
import torch
import torch._dynamo

import ulpscope.capture.torch.session
import ulpscope.workflows.run.python_capture
from ulpscope.numerics.summaries.compiled import summarize_into
from ulpscope.numerics.summaries.constants import ROW_LENGTH

__all__ = ["torch", "ulpscope"]

for _name, _dtype in (("float32", np.float32), ("bfloat16", np.int16), ("float16", np.int16), ("int64", np.int64)):
    summarize_into(np.ones(4, dtype=_dtype), _name, np.zeros(ROW_LENGTH))
