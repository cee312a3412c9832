"""Faults of matrix products and of what is fused with them."""

from __future__ import annotations

from faults.making import (
    FP32,
    HALVES,
    Data,
    Given,
    fault,
    given,
    in_blocks,
    rows_of,
    tf32,
    truncated,
    wide,
    wrong_backward,
    wrong_forward,
)

LINEAR = "torch.nn.functional.linear"


def layer(data: Data) -> Given:
    return given(data.x(64, 200), data.weight(72, 200), data.uniform(72, low=-0.07, high=0.07).requires_grad_())


def square(data: Data) -> Given:
    return given(data.x(64, 96), data.weight(96, 96))


def scores(data: Data) -> Given:
    return given(data.x(2, 4, 48, 32), data.x(2, 4, 32, 48))


def batches(data: Data) -> Given:
    return given(data.x(6, 40, 32), data.x(6, 32, 24))


def scaled_batches(data: Data) -> Given:
    return given(data.x(6, 40, 24), data.x(6, 40, 32), data.x(6, 32, 24), beta=0.5, alpha=32**-0.5)


def scaled_layer(data: Data) -> Given:
    return given(data.x(48, scale=0.1), data.x(64, 80), data.x(80, 48, scale=0.1), alpha=0.5)


def heads(data: Data) -> Given:
    return given("bqhd,bkhd->bhqk", data.x(2, 32, 4, 24), data.x(2, 32, 4, 24))


@wrong_forward(LINEAR, layer)
def linear_without_bias(linear, x, weight, bias):
    return linear(x, weight)


@wrong_forward(LINEAR, layer)
def linear_loses_the_tail_of_the_tile(linear, x, weight, bias):
    whole = x.shape[-1] // 64 * 64
    return linear(x[..., :whole], weight[:, :whole], bias)


@wrong_forward(LINEAR, layer, HALVES)
def linear_accumulates_in_half(linear, x, weight, bias):
    return in_blocks(x, weight.mT, x.dtype) + bias


@wrong_forward(LINEAR, layer, FP32)
def linear_with_tf32_operands(linear, x, weight, bias):
    return linear(tf32(x), tf32(weight), bias)


@wrong_forward(LINEAR, layer, ("float32", "float16"))
def linear_with_bf16_operands(linear, x, weight, bias):
    return linear(x.bfloat16().to(x.dtype), weight.bfloat16().to(x.dtype), bias)


@wrong_forward(LINEAR, layer, HALVES)
def linear_rounds_toward_zero(linear, x, weight, bias):
    return truncated(wide(x) @ wide(weight).mT + wide(bias), x.dtype)


@wrong_forward(LINEAR, layer)
def linear_repeats_a_column(linear, x, weight, bias):
    out = linear(x, weight, bias).clone()
    out[..., 17] = out[..., 16]
    return out


@wrong_backward(LINEAR, layer)
def linear_weight_gradient_without_the_last_rows(grads, sent, x, weight, bias):
    part = rows_of(sent)[:-4].mT.double() @ wide(rows_of(x))[:-4]
    return grads[0], part.to(x.dtype), grads[2]


@wrong_backward(LINEAR, layer)
def linear_bias_gradient_averaged(grads, sent, x, weight, bias):
    return grads[0], grads[1], grads[2] / rows_of(sent).shape[0]


@wrong_backward(LINEAR, layer, HALVES)
def linear_input_gradient_accumulates_in_half(grads, sent, x, weight, bias):
    return in_blocks(sent, weight, x.dtype, block=4), grads[1], grads[2]


@wrong_backward(LINEAR, square)
def linear_weight_gradient_transposed(grads, sent, x, weight):
    return grads[0], grads[1].mT if grads[1].shape[0] == grads[1].shape[1] else grads[1]


@wrong_forward("torch.matmul", scores)
def matmul_tile_with_half_of_the_sum(matmul, left, right):
    out, half = matmul(left, right).clone(), left.shape[-1] // 2
    out[..., -16:, -16:] = matmul(left[..., :half], right[..., :half, :])[..., -16:, -16:]
    return out


@wrong_backward("torch.matmul", scores, FP32)
def matmul_gradients_in_tf32(grads, sent, left, right):
    return tf32(sent) @ tf32(right).mT, tf32(left).mT @ tf32(sent)


@wrong_backward("torch.matmul", scores)
def matmul_gradient_of_the_wrong_side(grads, sent, left, right):
    return grads[0], (left.double().mT @ sent.double().roll(1, -1)).to(left.dtype)


@wrong_forward("torch.bmm", batches)
def bmm_last_batch_reads_the_one_before(bmm, left, right):
    out = bmm(left, right).clone()
    out[-1:] = bmm(left[-1:], right[-2:-1] if right.shape[0] > 1 else right.flip(-1))
    return out


@wrong_forward("torch.mm", square)
def mm_counts_an_element_of_the_sum_twice(mm, left, right):
    return (mm(wide(left), wide(right)) + wide(left)[:, -1:] * wide(right)[-1:]).to(left.dtype)


@fault("torch.baddbmm", scaled_batches)
def baddbmm_without_beta(baddbmm, added, left, right, beta, alpha):
    return baddbmm(added, left, right, alpha=alpha)


@fault("torch.baddbmm", scaled_batches)
def baddbmm_without_alpha(baddbmm, added, left, right, beta, alpha):
    return baddbmm(added, left, right, beta=beta)


@fault("torch.addmm", scaled_layer)
def addmm_scales_the_bias_too(addmm, bias, left, right, alpha):
    return addmm(bias, left, right, beta=alpha, alpha=alpha)


@wrong_backward("torch.addmm", scaled_layer)
def addmm_gradient_without_alpha(grads, sent, bias, left, right, alpha):
    return grads[0], grads[1] / alpha, grads[2]


@wrong_forward("torch.einsum", heads)
def einsum_last_head_repeats_the_one_before(einsum, equation, left, right):
    out = einsum(equation, left, right).clone()
    out[:, -1] = out[:, -2]
    return out


@wrong_forward("torch.dot", lambda data: given(data.x(1000), data.x(1000)))
def dot_loses_the_tail_of_the_tile(dot, left, right):
    whole = left.shape[0] // 64 * 64
    return dot(left[:whole], right[:whole])


@wrong_forward("torch.dot", lambda data: given(data.x(1000), data.x(1000)), HALVES)
def dot_accumulates_in_half(dot, left, right):
    return in_blocks(left[None], right[:, None], left.dtype, block=1)[0, 0]


@wrong_forward("torch.mv", lambda data: given(data.weight(64, 128), data.x(128)))
def mv_last_row_is_another(mv, matrix, vector):
    out = mv(matrix, vector).clone()
    out[-1] = out[0]
    return out
