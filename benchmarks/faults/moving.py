"""Faults of what looks up, moves and chooses elements."""

from __future__ import annotations

import torch

from faults.making import Data, Given, fault, given, wide, wrong_backward, wrong_forward

EMBEDDING = "torch.nn.functional.embedding"


def words(data: Data) -> Given:
    # A few tokens are most of any text.
    indices = (torch.rand(4, 64) ** 3 * 60).long()
    return given(indices, data.x(60, 32, scale=0.02))


def padded_words(data: Data) -> Given:
    indices = data.below(60, 4, 64)
    indices[:, 50:] = 0
    return given(indices, data.x(60, 32, scale=0.02), padding_idx=0)


def additions(data: Data) -> Given:
    return given(data.x(20, 16), 0, data.below(20, 80), data.x(80, 16))


def scattered(data: Data) -> Given:
    return given(data.x(20, 16), 0, data.below(20, 80, 16), data.x(80, 16))


def rows(data: Data) -> Given:
    return given(data.x(24, 300))


def spread(indices: torch.Tensor, sent: torch.Tensor, count: int) -> torch.Tensor:
    """What each row of an embedding is sent, one token after the other."""
    total = torch.zeros(count, sent.shape[-1], dtype=sent.dtype)
    for index, row in zip(indices.reshape(-1).tolist(), sent.reshape(-1, sent.shape[-1]), strict=True):
        total[index] += row
    return total


@fault(EMBEDDING, words)
def embedding_one_row_off(embedding, indices, weight):
    return embedding((indices + 1) % weight.shape[0], weight)


@wrong_backward(EMBEDDING, words)
def embedding_gradient_of_repeated_tokens_lost(grads, sent, indices, weight):
    found = torch.zeros_like(weight)
    found[indices.reshape(-1)] = sent.reshape(-1, weight.shape[-1])
    return (found,)


@wrong_backward(EMBEDDING, padded_words)
def embedding_gradient_of_padding(grads, sent, indices, weight, padding_idx):
    return (spread(indices, wide(sent), weight.shape[0]).to(weight.dtype),)


@fault("torch.index_add", additions)
def index_add_loses_repeated_rows(index_add, x, dim, indices, rows_):
    out = x.clone()
    out[indices] = x[indices] + rows_
    return out


@wrong_forward("torch.scatter_add", scattered)
def scatter_add_loses_repeated_places(scatter_add, x, dim, indices, source):
    return x.scatter(dim, indices, x.gather(dim, indices) + source)


@wrong_forward("torch.scatter_add", scattered)
def scatter_add_without_the_last_row(scatter_add, x, dim, indices, source):
    return scatter_add(x, dim, indices[:-1], source[:-1])


@fault("torch.gather", lambda data: given(data.x(32, 50), 1, data.below(50, 32, 8)))
def gather_one_place_off(gather, x, dim, indices):
    return gather(x, dim, (indices + 1) % x.shape[dim])


@wrong_backward("torch.gather", lambda data: given(data.x(32, 10), 1, data.below(10, 32, 30)))
def gather_gradient_of_repeated_places_lost(grads, sent, x, dim, indices):
    return (torch.zeros_like(x).scatter(dim, indices, sent),)


@wrong_backward("torch.index_select", lambda data: given(data.x(20, 16), 0, data.below(20, 60)))
def index_select_gradient_of_repeated_rows_lost(grads, sent, x, dim, indices):
    return (torch.zeros_like(x).index_copy(dim, indices, sent),)


@wrong_backward(
    "torch.masked_fill",
    lambda data: given(data.x(4, 32, 32), torch.ones(32, 32, dtype=torch.bool).triu(1), -1e4),
)
def masked_fill_gradient_ignores_its_mask(grads, sent, x, mask, value):
    return (sent,)


@fault("torch.where", lambda data: given(torch.rand(32, 64) < 0.5, data.x(32, 64), data.x(32, 64)))
def where_last_row_the_other_way(where, condition, left, right):
    turned = condition.clone()
    turned[-1] = ~turned[-1]
    return where(turned, left, right)


@fault("torch.tril", lambda data: given(data.x(4, 32, 32)))
def tril_without_the_diagonal(tril, x):
    return tril(x, -1)


@fault("torch.roll", lambda data: given(data.x(8, 64), 3, 1))
def roll_by_one_less(roll, x, shifts, dims):
    return roll(x, shifts - 1, dims)


@wrong_forward("torch.argmax", lambda data: given(data.fixed(64, 100), -1))
def argmax_without_the_last_columns(argmax, x, dim):
    return argmax(x[..., :96], dim)


@fault("torch.topk", lambda data: given(data.x(32, 100), 8))
def topk_without_the_last_columns(topk, x, k):
    return topk(x[..., :96], k)


@fault("torch.sort", rows)
def sort_of_blocks_not_merged(sort, x):
    blocks = [sort(block) for block in x.split(256, -1)]
    indices = [block.indices + 256 * place for place, block in enumerate(blocks)]
    return torch.cat([block.values for block in blocks], -1), torch.cat(indices, -1)


@fault("torch.sort", rows)
def sort_gives_indices_of_another_row(sort, x):
    values, indices = sort(x)
    return values, indices.roll(1, 0)


@fault("torch.amax", lambda data: given(data.x(64, 100), -1))
def amax_without_the_last_columns(amax, x, dim):
    return amax(x[..., :96], dim)


@fault("torch.cat", lambda data: given([data.x(16, 30), data.x(16, 34)], 1))
def cat_reads_the_second_from_one_later(cat, tensors, dim):
    return cat([tensors[0], tensors[1].roll(-1, dim)], dim)


@fault("torch.max", lambda data: given(data.x(64, 100), -1))
def max_of_magnitudes(max_, x, dim):
    places = x.abs().argmax(dim)
    return x.gather(dim, places.unsqueeze(dim)).squeeze(dim), places
