"""Faults of attention and recurrent layers."""

from __future__ import annotations

import torch

from faults.making import HALVES, Data, Given, fault, given, wide, wrong_backward, wrong_forward

ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
BLOCK = 16


def causal(data: Data) -> Given:
    return given(*(data.x(2, 4, 40, 32) for _ in range(3)), is_causal=True)


def whole(data: Data) -> Given:
    return given(*(data.x(2, 4, 40, 32) for _ in range(3)))


def masked(data: Data) -> Given:
    mask = torch.zeros(2, 1, 1, 40, dtype=data.dtype)
    mask[0, ..., 33:] = -10000.0
    return given(*(data.x(2, 4, 40, 32) for _ in range(3)), attn_mask=mask)


def lstm_layer(data: Data) -> Given:
    bound = 32**-0.5
    weights = [data.uniform(*shape, low=-bound, high=bound) for shape in ((128, 24), (128, 32), (128,), (128,))]
    state = (data.fixed(1, 6, 32, scale=0.3), data.fixed(1, 6, 32, scale=0.3))
    given_weights = [weight.requires_grad_() for weight in weights]
    return given(data.x(10, 6, 24), state, given_weights, True, 1, 0.0, True, False, False)


def gru_step(data: Data) -> Given:
    bound = 32**-0.5
    weights = [data.uniform(*shape, low=-bound, high=bound) for shape in ((96, 24), (96, 32), (96,), (96,))]
    return given(data.x(16, 24), data.x(16, 32, scale=0.3), *(weight.requires_grad_() for weight in weights))


def lstm_step(data: Data) -> Given:
    bound = 32**-0.5
    weights = [data.uniform(*shape, low=-bound, high=bound) for shape in ((128, 24), (128, 32), (128,), (128,))]
    state = [data.x(16, 32, scale=0.3), data.x(16, 32, scale=0.3)]
    return given(data.x(16, 24), state, *(weight.requires_grad_() for weight in weights))


def later_gates(weight: torch.Tensor) -> torch.Tensor:
    """The last two of four gates exchanged."""
    parts = weight.chunk(4)
    return torch.cat([parts[0], parts[1], parts[3], parts[2]])


@fault(ATTENTION, causal)
def attention_without_scale(attention, query, key, value, is_causal):
    return attention(query, key, value, is_causal=True, scale=1.0)


@fault(ATTENTION, causal)
def attention_without_causal_mask(attention, query, key, value, is_causal):
    return attention(query, key, value)


@fault(ATTENTION, causal)
def attention_sees_one_token_ahead(attention, query, key, value, is_causal):
    size = query.shape[-2], key.shape[-2]
    return attention(query, key, value, attn_mask=torch.ones(size, dtype=torch.bool).tril(1))


@fault(ATTENTION, masked)
def attention_without_padding_mask(attention, query, key, value, attn_mask):
    return attention(query, key, value)


@wrong_forward(ATTENTION, whole)
def attention_last_head_reads_the_one_before(attention, query, key, value):
    moved = torch.cat([key[:, :-1], key[:, -2:-1]], 1)
    return attention(query, moved, value)


@wrong_forward(ATTENTION, whole)
def attention_loses_the_last_keys(attention, query, key, value):
    kept = key.shape[-2] // BLOCK * BLOCK
    return attention(query, key[..., :kept, :], value[..., :kept, :])


@wrong_forward(ATTENTION, whole)
def attention_last_block_is_not_rescaled(attention, query, key, value):
    scores = wide(query) @ wide(key).mT / query.shape[-1] ** 0.5
    first, last = scores[..., :-BLOCK], scores[..., -BLOCK:]
    powers = torch.cat([(first - first.amax(-1, keepdim=True)).exp(), (last - scores.amax(-1, keepdim=True)).exp()], -1)
    return ((powers @ wide(value)) / powers.sum(-1, keepdim=True)).to(query.dtype)


@wrong_forward(ATTENTION, whole, ("float32", "float16"))
def attention_with_bf16_probabilities(attention, query, key, value):
    scores = wide(query) @ wide(key).mT / query.shape[-1] ** 0.5
    return (torch.softmax(scores, -1).bfloat16().double() @ wide(value)).to(query.dtype)


@wrong_forward(ATTENTION, whole, HALVES)
def attention_accumulates_in_half(attention, query, key, value):
    scores = wide(query) @ wide(key).mT / query.shape[-1] ** 0.5
    weights, total = torch.softmax(scores, -1), torch.zeros_like(query)
    for place in range(key.shape[-2]):
        part = weights[..., place : place + 1] * wide(value)[..., place : place + 1, :]
        total = total + part.to(query.dtype)
    return total


@wrong_backward(ATTENTION, causal)
def attention_key_gradient_without_scale(grads, sent, query, key, value, is_causal):
    return grads[0], grads[1] * query.shape[-1] ** 0.5, grads[2]


@wrong_backward(ATTENTION, whole)
def attention_value_gradient_without_the_last_queries(grads, sent, query, key, value):
    weights = torch.softmax(wide(query) @ wide(key).mT / query.shape[-1] ** 0.5, -1)
    kept = query.shape[-2] - 4
    return grads[0], grads[1], (weights[..., :kept, :].mT @ wide(sent)[..., :kept, :]).to(query.dtype)


@fault("torch.lstm", lstm_layer)
def lstm_with_gates_in_another_order(lstm, x, state, weights, *options):
    return lstm(x, state, [later_gates(weight) for weight in weights], *options)


@fault("torch.lstm", lstm_layer)
def lstm_without_the_second_bias(lstm, x, state, weights, *options):
    return lstm(x, state, [*weights[:3], weights[3] * 0], *options)


@fault("torch.lstm_cell", lstm_step)
def lstm_cell_without_its_state(lstm_cell, x, state, *weights):
    return lstm_cell(x, [state[0], state[1] * 0], *weights)


@fault("torch.gru_cell", gru_step)
def gru_cell_resets_before_the_product(gru_cell, x, hidden, w_in, w_hidden, b_in, b_hidden):
    reset, update, new = torch.nn.functional.linear(x, w_in, b_in).chunk(3, -1)
    heights = hidden.shape[-1]
    again = torch.nn.functional.linear(hidden, w_hidden[: 2 * heights], b_hidden[: 2 * heights])
    reset, update = torch.sigmoid(reset + again[:, :heights]), torch.sigmoid(update + again[:, heights:])
    candidate = torch.nn.functional.linear(reset * hidden, w_hidden[2 * heights :], b_hidden[2 * heights :])
    return torch.tanh(new + candidate) * (1 - update) + update * hidden
