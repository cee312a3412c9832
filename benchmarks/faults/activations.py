"""Faults of activations, of dropout and of plain arithmetic."""

from __future__ import annotations

import math

import torch

from faults.making import FP32, HALVES, Data, Given, fault, given, tf32, truncated, wide, wrong_backward, wrong_forward

F = torch.nn.functional
HIGH = ("float32", "float16")
"""Where the fault is finer than bfloat16 resolves."""


def activations(data: Data) -> Given:
    return given(data.x(64, 128))


def wider(data: Data) -> Given:
    return given(data.x(64, 128, scale=2.0))


def channels(data: Data) -> Given:
    return given(data.x(4, 16, 8, 8), data.x(16, scale=0.05, mean=0.25))


def pair(data: Data) -> Given:
    return given(data.x(64, 128), data.x(64, 128))


def positive(data: Data) -> Given:
    return given(data.uniform(64, 128, low=0.01, high=4.0).requires_grad_())


def dropped(data: Data) -> Given:
    return given(data.x(64, 128), p=0.1)


@fault("torch.nn.functional.gelu", activations)
def gelu_by_tanh(gelu, x):
    return gelu(x, approximate="tanh")


@fault("torch.nn.functional.gelu", activations)
def gelu_by_sigmoid(gelu, x):
    return x * torch.sigmoid(1.702 * x)


@wrong_backward("torch.nn.functional.gelu", activations)
def gelu_gradient_without_the_density(grads, sent, x):
    return (((1 + torch.erf(wide(x) / math.sqrt(2))) / 2 * wide(sent)).to(x.dtype),)


@wrong_backward("torch.nn.functional.silu", activations)
def silu_gradient_without_its_second_term(grads, sent, x):
    return ((torch.sigmoid(wide(x)) * wide(sent)).to(x.dtype),)


@wrong_forward("torch.nn.functional.silu", wider)
def silu_by_hard_swish(silu, x):
    return F.hardswish(x)


@wrong_backward("torch.sigmoid", activations)
def sigmoid_gradient_without_a_factor(grads, sent, x):
    return (torch.sigmoid(x) * sent,)


@wrong_forward("torch.sigmoid", wider, HALVES)
def sigmoid_rounds_toward_zero(sigmoid, x):
    return truncated(sigmoid(wide(x)), x.dtype)


@wrong_forward("torch.tanh", wider, HIGH)
def tanh_saturates_too_early(tanh, x):
    return torch.where(x.abs() > 3.5, x.sign(), tanh(x))


@wrong_backward("torch.tanh", activations)
def tanh_gradient_without_the_square(grads, sent, x):
    return (((1 - torch.tanh(wide(x)).abs()) * wide(sent)).to(x.dtype),)


@fault("torch.nn.functional.softplus", lambda data: given(data.x(64, 128), beta=2.0))
def softplus_without_beta(softplus, x, beta):
    return softplus(x)


@fault("torch.nn.functional.softplus", lambda data: given(data.x(64, 128, scale=3.0)))
def softplus_linear_too_early(softplus, x):
    return softplus(x, threshold=4)


@wrong_forward("torch.nn.functional.hardswish", wider, HIGH)
def hardswish_with_a_short_constant(hardswish, x):
    return (wide(x) * (wide(x) + 3).clamp(0, 6) * 0.1666).to(x.dtype)


@wrong_backward("torch.nn.functional.hardswish", wider)
def hardswish_gradient_ignores_its_bounds(grads, sent, x):
    return (((2 * wide(x) + 3) / 6 * wide(sent)).to(x.dtype),)


@fault("torch.nn.functional.leaky_relu", lambda data: given(data.x(64, 128), negative_slope=0.1))
def leaky_relu_with_the_default_slope(leaky_relu, x, negative_slope):
    return leaky_relu(x)


@wrong_forward("torch.prelu", channels)
def prelu_with_one_weight_for_all(prelu, x, weight):
    return prelu(x, weight[:1])


@wrong_backward("torch.prelu", channels)
def prelu_weight_gradient_of_part_of_the_batch(grads, sent, x, weight):
    part = (wide(sent) * wide(x).clamp(max=0))[:-1]
    return grads[0], part.sum((0, 2, 3)).to(x.dtype)


@wrong_backward("torch.nn.functional.elu", lambda data: given(data.x(64, 128), alpha=0.5))
def elu_gradient_without_alpha(grads, sent, x, alpha):
    return (torch.where(x < 0, x.exp() * sent, sent),)


@wrong_backward("torch.nn.functional.relu", activations)
def relu_gradient_ignores_its_mask(grads, sent, x):
    return (sent,)


@wrong_forward("torch.clamp", lambda data: given(data.x(64, 128, scale=2.0), -2.0, 3.0))
def clamp_with_one_bound_for_both(clamp, x, low, high):
    return clamp(x, low, -low)


@wrong_backward("torch.clamp", lambda data: given(data.x(64, 128, scale=2.0), -2.0, 3.0))
def clamp_gradient_outside_its_bounds(grads, sent, x, low, high):
    return (torch.where(x > low, sent, 0),)


@fault("torch.nn.functional.glu", activations)
def glu_with_the_halves_swapped(glu, x):
    return glu(torch.cat(x.chunk(2, -1)[::-1], -1))


@fault("torch.nn.functional.dropout", dropped)
def dropout_drops_too_many(dropout, x, p):
    kept = (torch.rand(x.shape) >= 2 * p).to(x.dtype)
    return x * kept / (1 - p)


@fault("torch.nn.functional.dropout", dropped)
def dropout_does_not_scale(dropout, x, p):
    return x * (torch.rand(x.shape) >= p).to(x.dtype)


@fault("torch.nn.functional.dropout", dropped)
def dropout_scales_by_p(dropout, x, p):
    return dropout(x, p=p) * (1 - p) / p


@wrong_backward("torch.nn.functional.dropout", dropped)
def dropout_gradient_with_another_mask(grads, sent, x, p):
    return (grads[0].roll(1, -1),)


@wrong_forward("torch.add", pair, HALVES)
def add_rounds_toward_zero(add, left, right):
    return truncated(wide(left) + wide(right), left.dtype)


@wrong_forward("torch.mul", pair, HALVES)
def mul_rounds_toward_zero(mul, left, right):
    return truncated(wide(left) * wide(right), left.dtype)


@wrong_forward("torch.mul", pair, FP32)
def mul_of_cut_operands(mul, left, right):
    return mul(tf32(left), tf32(right))


@wrong_backward("torch.mul", pair)
def mul_gradients_exchanged(grads, sent, left, right):
    return grads[1], grads[0]


@wrong_forward("torch.Tensor.to", lambda data: given(torch.randn(64, 128).requires_grad_(), data.dtype), HALVES)
def to_rounds_toward_zero(to, x, dtype):
    return truncated(x.detach(), dtype)


@wrong_forward("torch.exp", activations, FP32)
def exp_by_a_short_polynomial(exp, x):
    whole = (wide(x) / math.log(2)).round()
    rest = wide(x) - whole * math.log(2)
    powers = sum(rest**n / math.factorial(n) for n in range(5))
    return (powers * 2.0**whole).to(x.dtype)


@wrong_forward("torch.rsqrt", positive)
def rsqrt_with_one_iteration(rsqrt, x):
    guess = (0x5F3759DF - (x.float().contiguous().view(torch.int32) >> 1)).view(torch.float32)
    return (guess * (1.5 - 0.5 * x.float() * guess * guess)).to(x.dtype)


@wrong_forward("torch.log1p", lambda data: given(data.uniform(64, 128, low=0.0, high=0.01).requires_grad_()), FP32)
def log1p_by_log(log1p, x):
    return torch.log(1 + x)


@wrong_forward("torch.expm1", lambda data: given(data.x(64, 128, scale=0.01)), FP32)
def expm1_by_exp(expm1, x):
    return torch.exp(x) - 1


@wrong_forward("torch.sin", lambda data: given(data.uniform(64, 128, high=500.0)), FP32)
def sin_of_a_half_precision_angle(sin, x):
    return sin(x.half().float())


@wrong_forward("torch.pow", lambda data: given(data.uniform(64, 128, low=0.01, high=4.0), 3.7), FP32)
def pow_by_cut_logarithm(power, x, exponent):
    return torch.exp(exponent * tf32(torch.log(x)))


@wrong_forward("torch.erf", activations, FP32)
def erf_by_tanh(erf, x):
    return torch.tanh(2 / math.sqrt(math.pi) * (x + 0.08943 * x**3))


@fault("torch.addcmul", lambda data: given(data.x(64, 128), data.x(64, 128), data.x(64, 128), value=0.1))
def addcmul_without_value(addcmul, x, left, right, value):
    return addcmul(x, left, right)


@fault(
    "torch.addcdiv",
    lambda data: given(
        data.fixed(64, 128, scale=0.05),
        data.fixed(64, 128, scale=1e-2),
        data.uniform(64, 128, low=1e-2, high=5e-2),
        value=-0.01,
    ),
)
def addcdiv_with_a_second_eps(addcdiv, x, numerator, denominator, value):
    return addcdiv(x, numerator, denominator + 1e-3, value=value)


@fault("torch.lerp", lambda data: given(data.x(64, 128), data.x(64, 128), 0.1))
def lerp_the_other_way(lerp, begin, end, weight):
    return lerp(end, begin, weight)


@wrong_forward("torch.floor_divide", lambda data: given(data.fixed(64, 128, scale=20.0), 3.0))
def floor_divide_truncates(floor_divide, x, divisor):
    return torch.div(x, divisor, rounding_mode="trunc")


@wrong_forward("torch.remainder", lambda data: given(data.fixed(64, 128, scale=5.0), 3.0))
def remainder_with_the_sign_of_the_dividend(remainder, x, divisor):
    return torch.fmod(x, divisor)


@wrong_forward("torch.atan2", pair)
def atan2_loses_the_quadrant(atan2, left, right):
    return torch.atan(left / right)
