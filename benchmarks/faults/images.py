"""Faults of convolutions, pooling and resizing."""

from __future__ import annotations

import torch

from faults.making import FP32, HALVES, Data, Given, fault, given, tf32, wide, wrong_backward, wrong_forward

F = torch.nn.functional


def image(data: Data) -> Given:
    bias = data.uniform(24, low=-0.08, high=0.08).requires_grad_()
    return given(data.x(4, 20, 12, 12), data.weight(24, 20, 3, 3), bias, 1, 1)


def strided(data: Data) -> Given:
    return given(data.x(4, 16, 13, 13), data.weight(24, 16, 3, 3), None, 2, 1)


def dilated(data: Data) -> Given:
    return given(data.x(2, 16, 12, 12), data.weight(16, 16, 3, 3), None, 1, 2, 2)


def grouped(data: Data) -> Given:
    return given(data.x(4, 16, 10, 10), data.weight(16, 4, 3, 3), None, 1, 1, 1, 4)


def signal(data: Data) -> Given:
    return given(data.x(4, 16, 60), data.weight(24, 16, 3), None, 1, 1)


def transposed(data: Data) -> Given:
    return given(data.x(2, 16, 8, 8), data.x(16, 12, 3, 3, scale=0.1), None, 2, 1, 1)


def pooled(data: Data) -> Given:
    return given(data.x(4, 8, 12, 12), 3, 2, 1)


def resized(data: Data) -> Given:
    return given(data.x(2, 4, 8, 8), scale_factor=2.0, mode="bilinear", align_corners=False)


@wrong_forward("torch.conv2d", image)
def conv2d_without_bias(conv2d, x, weight, bias, stride, padding):
    return conv2d(x, weight, None, stride, padding)


@fault("torch.conv2d", image)
def conv2d_pads_with_the_edge(conv2d, x, weight, bias, stride, padding):
    return conv2d(F.pad(x, (padding,) * 4, mode="replicate"), weight, bias, stride)


@wrong_forward("torch.conv2d", image)
def conv2d_loses_the_last_channels(conv2d, x, weight, bias, stride, padding):
    return conv2d(x[:, :16], weight[:, :16], bias, stride, padding)


@fault("torch.conv2d", image)
def conv2d_with_a_flipped_kernel(conv2d, x, weight, bias, stride, padding):
    return conv2d(x, weight.flip(-1, -2), bias, stride, padding)


@wrong_forward("torch.conv2d", image)
def conv2d_one_channel_repeated(conv2d, x, weight, bias, stride, padding):
    out = conv2d(x, weight, bias, stride, padding).clone()
    out[:, 7] = out[:, 6]
    return out


@wrong_forward("torch.conv2d", image, HALVES)
def conv2d_accumulates_in_half(conv2d, x, weight, bias, stride, padding):
    total = bias.view(1, -1, 1, 1).expand_as(conv2d(x, weight, bias, stride, padding))
    for channel in range(x.shape[1]):
        one = slice(channel, channel + 1)
        part = conv2d(x[:, one].float(), weight[:, one].float(), None, stride, padding)
        total = (total.float() + part).to(x.dtype)
    return total


@wrong_forward("torch.conv2d", image, FP32)
def conv2d_with_tf32_operands(conv2d, x, weight, bias, stride, padding):
    return conv2d(tf32(x), tf32(weight), bias, stride, padding)


@wrong_backward("torch.conv2d", image)
def conv2d_weight_gradient_without_the_last_image(grads, sent, x, weight, bias, stride, padding):
    part = torch.nn.grad.conv2d_weight(wide(x)[:-1], weight.shape, wide(sent)[:-1], stride, padding)
    return grads[0], part.to(x.dtype), grads[2]


@wrong_backward("torch.conv2d", image)
def conv2d_input_gradient_with_an_unflipped_kernel(grads, sent, x, weight, bias, stride, padding):
    return torch.conv2d(sent, weight.transpose(0, 1), None, stride, padding), grads[1], grads[2]


@fault("torch.conv2d", strided)
def conv2d_strides_from_one_later(conv2d, x, weight, bias, stride, padding):
    return conv2d(F.pad(x[:, :, 1:, 1:], (0, 1, 0, 1)), weight, bias, stride, padding)


@fault("torch.conv2d", dilated)
def conv2d_without_dilation(conv2d, x, weight, bias, stride, padding, dilation):
    return conv2d(x, weight, bias, stride, 1)


@fault("torch.conv2d", grouped)
def conv2d_last_group_reads_the_one_before(conv2d, x, weight, bias, stride, padding, dilation, groups):
    size = x.shape[1] // groups
    moved = torch.cat([x[:, :-size], x[:, -2 * size : -size]], 1)
    return conv2d(moved, weight, bias, stride, padding, dilation, groups)


@fault("torch.conv1d", signal)
def conv1d_pads_on_one_side(conv1d, x, weight, bias, stride, padding):
    return conv1d(F.pad(x, (2 * padding, 0)), weight, bias, stride)


@fault("torch.conv_transpose2d", transposed)
def conv_transpose2d_with_a_flipped_kernel(conv, x, weight, bias, stride, padding, output_padding):
    return conv(x, weight.flip(-1, -2), bias, stride, padding, output_padding)


@fault("torch.nn.functional.avg_pool2d", pooled)
def avg_pool2d_does_not_count_padding(avg_pool2d, x, size, stride, padding):
    return avg_pool2d(x, size, stride, padding, count_include_pad=False)


@wrong_forward("torch.nn.functional.max_pool2d", lambda data: given(data.x(4, 8, 12, 12, mean=-1.0), 3, 2, 1))
def max_pool2d_pads_with_zeros(max_pool2d, x, size, stride, padding):
    return max_pool2d(F.pad(x, (padding,) * 4), size, stride)


@wrong_backward("torch.nn.functional.max_pool2d", lambda data: given(data.x(4, 8, 12, 12), 2))
def max_pool2d_gradient_to_the_first_element(grads, sent, x, size):
    found = torch.zeros_like(x)
    found[..., ::size, ::size] = sent
    return (found,)


@wrong_forward("torch.nn.functional.adaptive_avg_pool2d", lambda data: given(data.x(4, 8, 10, 10), 4))
def adaptive_avg_pool2d_with_equal_windows(pool, x, size):
    return F.avg_pool2d(x, 3, 2)[..., :size, :size]


@fault("torch.nn.functional.interpolate", resized)
def interpolate_aligns_corners(interpolate, x, scale_factor, mode, align_corners):
    return interpolate(x, scale_factor=scale_factor, mode=mode, align_corners=True)


@fault("torch.nn.functional.interpolate", lambda data: given(data.x(2, 4, 9, 9), size=(6, 6), mode="nearest"))
def interpolate_takes_the_exact_nearest(interpolate, x, size, mode):
    return interpolate(x, size=size, mode="nearest-exact")


@fault("torch.nn.functional.pad", lambda data: given(data.x(2, 4, 8, 8), (2, 2, 2, 2), mode="reflect"))
def pad_repeats_the_edge(pad, x, sides, mode):
    return pad(x, sides, mode="replicate")


@wrong_forward("torch.pixel_shuffle", lambda data: given(data.x(2, 16, 6, 6), 2))
def pixel_shuffle_with_rows_and_columns_exchanged(pixel_shuffle, x, factor):
    return pixel_shuffle(x.mT, factor).mT
