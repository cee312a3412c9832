"""The coarsest type in which the forward behind a loss holds numbers."""

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ulpscope.capture.torch.watching.graph_types import coarsest_in_graph

WEIGHT = torch.ones(4, 4, requires_grad=True)


def test_autocast_is_seen_behind_a_loss_in_float32() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        made = functional.linear(WEIGHT, WEIGHT)
    assert coarsest_in_graph(made.float().sum()) == "bfloat16"


def test_a_cast_of_the_scripts_own_is_seen() -> None:
    assert coarsest_in_graph((WEIGHT.half() * 2).float().sum()) == "float16"


def test_one_type_all_the_way() -> None:
    assert coarsest_in_graph((WEIGHT * 2).sum()) == "float32"
    assert coarsest_in_graph((WEIGHT.double() * 2).sum()) == "float32"


def test_what_cannot_be_looked_into_is_not_known() -> None:
    assert coarsest_in_graph(checkpoint(lambda x: x * 2, WEIGHT, use_reentrant=True).sum()) is None
