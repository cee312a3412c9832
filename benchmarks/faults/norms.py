"""Faults of normalisation layers."""

from __future__ import annotations

import torch

from faults.making import HALVES, Data, Given, fault, given, truncated, wide, wrong_backward, wrong_forward

LAYER = "torch.nn.functional.layer_norm"
RMS = "torch.nn.functional.rms_norm"
GROUP = "torch.nn.functional.group_norm"
BATCH = "torch.nn.functional.batch_norm"


def rows(data: Data) -> Given:
    weight, bias = data.x(192, scale=0.1, mean=1.0), data.x(192, scale=0.1)
    return given(data.x(64, 192, mean=0.3), (192,), weight, bias, 1e-5)


def rms_rows(data: Data) -> Given:
    return given(data.x(64, 192), (192,), data.x(192, scale=0.1, mean=1.0), 1e-6)


def groups(data: Data) -> Given:
    return given(data.x(4, 32, 8, 8), 4, data.x(32, scale=0.1, mean=1.0), data.x(32, scale=0.1), 1e-5)


def batch(data: Data) -> Given:
    mean, var = data.fixed(16, scale=0.1), data.uniform(16, low=0.5, high=1.5)
    weight, bias = data.x(16, scale=0.1, mean=1.0), data.x(16, scale=0.1)
    return given(data.x(8, 16, 6, 6, mean=0.2), mean, var, weight, bias, True, 0.1, 1e-5)


@fault(LAYER, rows)
def layer_norm_without_eps(layer_norm, x, shape, weight, bias, eps):
    return layer_norm(x, shape, weight, bias, 0.0)


@fault(LAYER, rows)
def layer_norm_with_a_tenth_of_eps(layer_norm, x, shape, weight, bias, eps):
    return layer_norm(x, shape, weight, bias, eps / 10)


@wrong_forward(LAYER, rows)
def layer_norm_with_eps_outside_the_root(layer_norm, x, shape, weight, bias, eps):
    x64 = wide(x)
    deviation = x64.var(-1, correction=0, keepdim=True).sqrt() + eps
    return ((x64 - x64.mean(-1, keepdim=True)) / deviation * wide(weight) + wide(bias)).to(x.dtype)


@wrong_forward(LAYER, rows)
def layer_norm_with_unbiased_variance(layer_norm, x, shape, weight, bias, eps):
    x64 = wide(x)
    scaled = (x64 - x64.mean(-1, keepdim=True)) / (x64.var(-1, keepdim=True) + eps).sqrt()
    return (scaled * wide(weight) + wide(bias)).to(x.dtype)


@wrong_forward(LAYER, rows)
def layer_norm_in_one_pass(layer_norm, x, shape, weight, bias, eps):
    x32 = x.float()
    mean = x32.mean(-1, keepdim=True)
    var = x32.square().mean(-1, keepdim=True) - mean.square()
    return ((x32 - mean) / (var + eps).sqrt() * weight.float() + bias.float()).to(x.dtype)


@wrong_forward(LAYER, rows)
def layer_norm_mean_without_the_last_element(layer_norm, x, shape, weight, bias, eps):
    x64 = wide(x)
    mean = x64[..., :-1].mean(-1, keepdim=True)
    scaled = (x64 - mean) / ((x64 - mean).square().mean(-1, keepdim=True) + eps).sqrt()
    return (scaled * wide(weight) + wide(bias)).to(x.dtype)


@wrong_forward(LAYER, rows, HALVES)
def layer_norm_with_statistics_in_half(layer_norm, x, shape, weight, bias, eps):
    mean, var = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    scaled = (x.float() - mean.float()) * (var + eps).rsqrt().float()
    return (scaled * weight.float() + bias.float()).to(x.dtype)


@wrong_forward(LAYER, rows, HALVES)
def layer_norm_rounds_toward_zero(layer_norm, x, shape, weight, bias, eps):
    return truncated(layer_norm(wide(x), shape, wide(weight), wide(bias), eps), x.dtype)


@wrong_forward(LAYER, rows)
def layer_norm_without_bias(layer_norm, x, shape, weight, bias, eps):
    return layer_norm(x, shape, weight, None, eps)


@wrong_backward(LAYER, rows)
def layer_norm_gradient_without_its_second_term(grads, sent, x, shape, weight, bias, eps):
    x64, back = wide(x), wide(sent) * wide(weight)
    scale = (x64.var(-1, correction=0, keepdim=True) + eps).rsqrt()
    return ((back - back.mean(-1, keepdim=True)) * scale).to(x.dtype), grads[1], grads[2]


@wrong_backward(LAYER, rows)
def layer_norm_weight_gradient_of_part_of_the_rows(grads, sent, x, shape, weight, bias, eps):
    x64 = wide(x)[:-16]
    scaled = torch.nn.functional.layer_norm(x64, shape, eps=eps)
    return grads[0], (scaled * wide(sent)[:-16]).sum(0).to(x.dtype), grads[2]


@fault(RMS, rms_rows)
def rms_norm_without_eps(rms_norm, x, shape, weight, eps):
    return rms_norm(x, shape, weight, 0.0)


@fault(RMS, rms_rows)
def rms_norm_adds_one_to_its_weight(rms_norm, x, shape, weight, eps):
    return rms_norm(x, shape, weight + 1, eps)


@wrong_forward(RMS, rms_rows)
def rms_norm_loses_the_tail_of_the_row(rms_norm, x, shape, weight, eps):
    mean = wide(x)[..., : x.shape[-1] // 128 * 128].square().sum(-1, keepdim=True) / x.shape[-1]
    return (wide(x) * (mean + eps).rsqrt() * wide(weight)).to(x.dtype)


@wrong_backward(RMS, rms_rows)
def rms_norm_gradient_as_if_the_norm_were_constant(grads, sent, x, shape, weight, eps):
    scale = (wide(x).square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide(sent) * wide(weight) * scale).to(x.dtype), grads[1]


@fault(GROUP, groups)
def group_norm_with_twice_the_groups(group_norm, x, count, weight, bias, eps):
    return group_norm(x, count * 2, weight, bias, eps)


@wrong_forward(GROUP, groups)
def group_norm_weight_of_the_first_channel_of_the_group(group_norm, x, count, weight, bias, eps):
    first = weight.view(count, -1)[:, :1].expand(count, weight.numel() // count).reshape(-1)
    return group_norm(x, count, first, bias, eps)


@fault(GROUP, groups)
def group_norm_with_large_eps(group_norm, x, count, weight, bias, eps):
    return group_norm(x, count, weight, bias, 1e-3)


@wrong_forward(BATCH, batch)
def batch_norm_with_statistics_of_half_the_batch(batch_norm, x, mean, var, weight, bias, training, momentum, eps):
    batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    half = wide(x)[: x.shape[0] // 2]
    return batch_norm(
        wide(x), half.mean((0, 2, 3)), half.var((0, 2, 3), correction=0), wide(weight), wide(bias), False, 0.0, eps
    ).to(x.dtype)


@fault(BATCH, batch)
def batch_norm_running_variance_is_biased(batch_norm, x, mean, var, weight, bias, training, momentum, eps):
    out = batch_norm(x, mean, var.clone(), weight, bias, training, momentum, eps)
    var.copy_((1 - momentum) * wide(var) + momentum * wide(x).var((0, 2, 3), correction=0))
    return out


@fault(BATCH, batch)
def batch_norm_momentum_the_other_way(batch_norm, x, mean, var, weight, bias, training, momentum, eps):
    return batch_norm(x, mean, var, weight, bias, training, 1 - momentum, eps)


@fault(BATCH, batch)
def batch_norm_running_statistics_not_updated(batch_norm, x, mean, var, weight, bias, training, momentum, eps):
    return batch_norm(x, None, None, weight, bias, training, momentum, eps)


@fault(BATCH, batch)
def batch_norm_with_running_statistics_in_training(batch_norm, x, mean, var, weight, bias, training, momentum, eps):
    old = mean.clone(), var.clone()
    batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    return batch_norm(x, *old, weight, bias, False, momentum, eps)


@fault(BATCH, batch)
def batch_norm_with_large_eps(batch_norm, x, mean, var, weight, bias, training, momentum, eps):
    return batch_norm(x, mean, var, weight, bias, training, momentum, 1e-3)


@fault(BATCH, batch)
def batch_norm_gradient_as_if_statistics_were_constant(batch_norm, x, mean, var, weight, bias, training, momentum, eps):
    batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    seen = x.detach().float()
    now = seen.mean((0, 2, 3)), seen.var((0, 2, 3), correction=0)
    return batch_norm(x.float(), *now, weight.float(), bias.float(), False, momentum, eps).to(x.dtype)


@fault("torch.nn.functional.instance_norm", lambda data: given(data.x(4, 8, 10, 10)))
def instance_norm_over_the_batch(instance_norm, x):
    return torch.nn.functional.batch_norm(x, None, None, training=True)
