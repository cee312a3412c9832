"""Watches a PyTorch run: function mode, module hooks, autograd node hooks, optimizer hooks."""

import torch

from ulpscope.capture.versions import refuse_old_torch

# Before anything here is imported that older versions lack.
refuse_old_torch(torch.__version__)
