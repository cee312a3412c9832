"""Faults of sums, means, norms and softmax."""

from __future__ import annotations

import torch

from faults.making import ALL, HALVES, Data, Given, added_in, fault, given, wide, wrong_backward, wrong_forward

SOFTMAX = "torch.nn.functional.softmax"
FP16 = ("float16",)


def rows(data: Data) -> Given:
    return given(data.x(32, 500), dim=-1)


def positive_rows(data: Data) -> Given:
    return given(data.x(32, 500, mean=2.0), dim=-1)


def few(data: Data) -> Given:
    return given(data.x(48, 64, mean=1.0), dim=-1)


def attention(data: Data) -> Given:
    return given(data.x(2, 4, 48, 48, scale=2.0), dim=-1)


def logits(data: Data) -> Given:
    return given(data.x(40, 300, scale=3.0), dim=-1)


def gradients(data: Data) -> Given:
    return given(data.x(40, 300, scale=1e-3), dim=-1)


@wrong_forward("torch.sum", rows)
def sum_without_the_last_element(sum_, x, dim):
    return sum_(x[..., :-1], dim=dim)


@wrong_forward("torch.sum", positive_rows, HALVES)
def sum_accumulates_in_half(sum_, x, dim):
    return added_in(x.dtype, x)


@wrong_forward("torch.sum", rows)
def sum_counts_the_edge_of_a_block_twice(sum_, x, dim):
    return (sum_(wide(x), dim=dim) + wide(x)[..., 255]).to(x.dtype)


@wrong_backward("torch.sum", rows)
def sum_gradient_stops_at_the_tile(grads, sent, x, dim):
    found = grads[0].clone()
    found[..., x.shape[-1] // 64 * 64 :] = 0
    if x.shape[-1] % 64 == 0:
        found[..., -1] = 0
    return (found,)


@fault("torch.mean", rows)
def mean_divides_by_one_less(mean, x, dim):
    return (x.double().sum(dim) / (x.shape[-1] - 1)).to(x.dtype)


@wrong_forward("torch.mean", positive_rows, FP16)
def mean_overflows_before_it_divides(mean, x, dim):
    return x.float().sum(dim).half() / x.shape[-1]


@wrong_backward("torch.mean", rows)
def mean_gradient_is_not_divided(grads, sent, x, dim):
    return (sent.unsqueeze(-1).expand_as(x),)


@wrong_forward("torch.cumsum", rows)
def cumsum_restarts_at_a_block(cumsum, x, dim):
    return torch.cat([cumsum(block, dim=dim) for block in x.split(256, dim)], dim)


@wrong_forward("torch.cumsum", positive_rows, HALVES)
def cumsum_accumulates_in_half(cumsum, x, dim):
    total, found = torch.zeros_like(x[..., 0]), []
    for place in range(x.shape[-1]):
        total = total + x[..., place]
        found.append(total)
    return torch.stack(found, -1)


@fault("torch.var", few)
def var_divides_by_n(var, x, dim):
    return var(x, dim=dim, correction=0)


@wrong_forward("torch.var", few)
def var_in_one_pass(var, x, dim):
    n, x32 = x.shape[-1], x.float()
    return ((x32.square().sum(dim) - x32.sum(dim).square() / n) / (n - 1)).to(x.dtype)


@wrong_backward("torch.std", few)
def std_gradient_divides_by_n(grads, sent, x, dim):
    return (grads[0] * ((x.shape[-1] - 1) / x.shape[-1]),)


@fault("torch.std", few)
def std_of_the_population(std, x, dim):
    return std(x, dim=dim, correction=0)


@wrong_forward("torch.linalg.vector_norm", gradients, FP16)
def vector_norm_squares_in_half(vector_norm, x, dim):
    return x.square().float().sum(dim).sqrt().to(x.dtype)


@fault("torch.linalg.vector_norm", gradients)
def vector_norm_of_order_one(vector_norm, x, dim):
    return vector_norm(x, 1, dim=dim)


@wrong_backward("torch.norm", gradients)
def norm_gradient_is_doubled(grads, sent, x, dim):
    return (grads[0] * 2,)


@wrong_forward("torch.norm", gradients)
def norm_without_the_last_element(norm, x, dim):
    return norm(x[..., :-1], dim=dim)


@fault("torch.logsumexp", logits)
def logsumexp_without_maximum(logsumexp, x, dim):
    return x.float().exp().sum(dim).log().to(x.dtype)


@wrong_forward("torch.logsumexp", logits)
def logsumexp_without_the_last_element(logsumexp, x, dim):
    return logsumexp(x[..., :-1], dim=dim)


@fault(SOFTMAX, attention)
def softmax_without_maximum(softmax, x, dim):
    powers = x.float().exp()
    return (powers / powers.sum(dim, keepdim=True)).to(x.dtype)


@fault(SOFTMAX, attention)
def softmax_over_the_wrong_axis(softmax, x, dim):
    return softmax(x, dim=-2)


@wrong_forward(SOFTMAX, attention)
def softmax_sum_without_the_last_column(softmax, x, dim):
    powers = (wide(x) - wide(x).amax(dim, keepdim=True)).exp()
    return (powers / powers[..., :-1].sum(dim, keepdim=True)).to(x.dtype)


@wrong_forward(SOFTMAX, attention, HALVES)
def softmax_sums_in_half(softmax, x, dim):
    powers = (wide(x) - wide(x).amax(dim, keepdim=True)).exp()
    return (powers / added_in(x.dtype, powers.to(x.dtype)).unsqueeze(-1).double()).to(x.dtype)


@wrong_backward(SOFTMAX, attention)
def softmax_gradient_without_the_sum(grads, sent, x, dim):
    return (torch.softmax(x, dim) * sent,)


@fault("torch.nn.functional.log_softmax", logits)
def log_softmax_as_log_of_softmax(log_softmax, x, dim):
    return torch.softmax(x, dim).log()


@wrong_backward("torch.nn.functional.log_softmax", logits)
def log_softmax_gradient_without_the_sum(grads, sent, x, dim):
    return (sent - torch.softmax(x, dim),)


@wrong_forward("torch.nn.functional.normalize", lambda data: given(data.x(40, 64, scale=0.1), dim=-1), ALL)
def normalize_adds_its_eps(normalize, x, dim):
    return x / (torch.linalg.vector_norm(x, dim=dim, keepdim=True) + 1e-2)


@wrong_backward("torch.cosine_similarity", lambda data: given(data.x(40, 64), data.x(40, 64), dim=-1), ALL)
def cosine_similarity_gradient_of_the_numerator_alone(grads, sent, left, right, dim):
    lengths = torch.linalg.vector_norm(left, dim=dim) * torch.linalg.vector_norm(right, dim=dim)
    return (sent / lengths).unsqueeze(-1) * right, grads[1]
