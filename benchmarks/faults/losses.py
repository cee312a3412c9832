"""Faults of losses."""

from __future__ import annotations

import torch

from faults.making import ALL, HALVES, Data, Given, added_in, fault, given, wide, wrong_backward, wrong_forward

F = torch.nn.functional
ENTROPY = "torch.nn.functional.cross_entropy"
BINARY = "torch.nn.functional.binary_cross_entropy_with_logits"


def tokens(data: Data) -> Given:
    labels = data.below(200, 96)
    labels[::7] = -100
    return given(data.x(96, 200, scale=2.0), labels, ignore_index=-100)


def smoothed(data: Data) -> Given:
    return given(data.x(64, 50, scale=2.0), data.below(50, 64), label_smoothing=0.1)


def weighted(data: Data) -> Given:
    return given(data.x(64, 10, scale=2.0), data.below(10, 64), data.uniform(10, low=0.5, high=2.0))


def binary(data: Data) -> Given:
    labels = (torch.rand(64, 12) < 0.3).to(data.dtype)
    return given(data.x(64, 12, scale=3.0), labels, pos_weight=data.uniform(12, low=1.0, high=3.0))


def plain_binary(data: Data) -> Given:
    return given(data.x(64, 12, scale=4.0), (torch.rand(64, 12) < 0.3).to(data.dtype))


def regression(data: Data) -> Given:
    return given(data.x(64, 16), data.fixed(64, 16))


def distributions(data: Data) -> Given:
    logs = torch.log_softmax(torch.randn(32, 40), -1).to(data.dtype)
    wanted = torch.softmax(torch.randn(32, 40), -1).to(data.dtype)
    return given(logs.requires_grad_(), wanted, reduction="batchmean")


@fault(ENTROPY, tokens)
def cross_entropy_does_not_ignore(cross_entropy, logits, labels, ignore_index):
    return cross_entropy(logits, labels.clamp(min=0))


@fault(ENTROPY, tokens)
def cross_entropy_averages_over_ignored_labels_too(cross_entropy, logits, labels, ignore_index):
    return cross_entropy(logits, labels, ignore_index=ignore_index, reduction="sum") / labels.numel()


@wrong_backward(ENTROPY, tokens)
def cross_entropy_gradient_at_ignored_labels(grads, sent, logits, labels, ignore_index):
    whole = torch.softmax(wide(logits), -1) - F.one_hot(labels.clamp(min=0), logits.shape[-1])
    count = (labels != ignore_index).sum()
    return ((whole / count * wide(sent)).to(logits.dtype),)


@wrong_backward(ENTROPY, smoothed)
def cross_entropy_gradient_is_not_averaged(grads, sent, logits, labels, label_smoothing):
    return (grads[0] * labels.numel(),)


@fault(ENTROPY, smoothed)
def cross_entropy_without_label_smoothing(cross_entropy, logits, labels, label_smoothing):
    return cross_entropy(logits, labels)


@fault(ENTROPY, smoothed)
def cross_entropy_smooths_over_the_other_classes_only(cross_entropy, logits, labels, label_smoothing):
    classes = logits.shape[-1]
    return cross_entropy(logits, labels, label_smoothing=label_smoothing * classes / (classes - 1))


@fault(ENTROPY, weighted)
def cross_entropy_without_class_weights(cross_entropy, logits, labels, weight):
    return cross_entropy(logits, labels)


@fault(
    "torch.nn.functional.nll_loss",
    lambda data: given(torch.log_softmax(torch.randn(64, 10), -1).to(data.dtype).requires_grad_(), data.below(10, 64)),
)
def nll_loss_of_the_class_before(nll_loss, logs, labels):
    return nll_loss(logs, (labels - 1).clamp(min=0))


@fault("torch.nn.functional.kl_div", distributions)
def kl_div_averages_over_elements(kl_div, logs, wanted, reduction):
    return kl_div(logs, wanted, reduction="none").mean()


@wrong_forward("torch.nn.functional.kl_div", distributions)
def kl_div_without_the_entropy(kl_div, logs, wanted, reduction):
    return -(logs * wanted).sum() / logs.shape[0]


@fault(BINARY, binary)
def binary_cross_entropy_without_the_weight_of_positives(loss, logits, labels, pos_weight):
    return loss(logits, labels)


@fault(BINARY, plain_binary, ALL)
def binary_cross_entropy_of_a_clamped_sigmoid(loss, logits, labels):
    share = torch.sigmoid(logits.float()).clamp(1e-3, 1 - 1e-3)
    return F.binary_cross_entropy(share, labels.float()).to(logits.dtype)


@wrong_backward(BINARY, plain_binary)
def binary_cross_entropy_gradient_is_not_averaged(grads, sent, logits, labels):
    return ((torch.sigmoid(logits) - labels) * sent,)


@wrong_backward("torch.nn.functional.mse_loss", regression)
def mse_loss_gradient_without_its_factor(grads, sent, found, wanted):
    return (grads[0] / 2,)


@fault("torch.nn.functional.mse_loss", regression)
def mse_loss_averages_over_the_batch_only(mse_loss, found, wanted):
    return mse_loss(found, wanted, reduction="sum") / found.shape[0]


@wrong_forward("torch.nn.functional.mse_loss", regression, HALVES)
def mse_loss_accumulates_in_half(mse_loss, found, wanted):
    return added_in(found.dtype, (found - wanted).square().reshape(-1)) / found.numel()


@fault("torch.nn.functional.smooth_l1_loss", lambda data: given(data.x(64, 16), data.fixed(64, 16), beta=0.1))
def smooth_l1_loss_without_beta(smooth_l1_loss, found, wanted, beta):
    return smooth_l1_loss(found, wanted)


@wrong_backward("torch.nn.functional.huber_loss", lambda data: given(data.x(64, 16), data.fixed(64, 16), delta=0.5))
def huber_loss_gradient_without_delta(grads, sent, found, wanted, delta):
    apart = wide(found) - wide(wanted)
    slope = torch.where(apart.abs() < delta, apart, apart.sign())
    return ((slope / found.numel() * wide(sent)).to(found.dtype),)


@fault("torch.nn.functional.l1_loss", regression)
def l1_loss_is_summed(l1_loss, found, wanted):
    return l1_loss(found, wanted, reduction="sum")
