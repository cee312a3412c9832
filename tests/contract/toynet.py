"""A made-up framework: functions on numpy arrays that remember how to go back, a layer, an optimizer.

It knows nothing of ulpscope; toynet_capture.py watches it.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class Done(NamedTuple):
    """A function that has run, and how gradients go back through it."""

    inputs: tuple[Array, ...]
    output: Array
    back: Callable[[Array], tuple[Array, ...]]


TAPE: list[Done] = []


def add(x: Array, y: Array) -> Array:
    return _remember((x, y), x + y, lambda gradient: (gradient, _summed_to(y.shape, gradient)))


def matmul(x: Array, y: Array) -> Array:
    return _remember((x, y), x @ y, lambda gradient: (gradient @ y.T, x.T @ gradient))


def relu(x: Array) -> Array:
    return _remember((x,), np.maximum(x, np.float32(0)), lambda gradient: (gradient * (x > 0),))


def mean_square(x: Array) -> Array:
    mean = np.mean(np.square(x), keepdims=True)
    return _remember((x,), mean, lambda gradient: (gradient * np.float32(2 / x.size) * x,))


def _remember(inputs: tuple[Array, ...], output: Array, back: Callable[[Array], tuple[Array, ...]]) -> Array:
    output.flags.writeable = False  # a result never changes
    TAPE.append(Done(inputs, output, back))
    return output


def _summed_to(shape: tuple[int, ...], gradient: Array) -> Array:
    summed: Array = gradient.sum(axis=0) if gradient.shape != shape else gradient
    return summed


def go_back(done: Done, gradient: Array) -> tuple[Array, ...]:
    """The gradients of a function's inputs."""
    return done.back(gradient)


def backward(loss: Array) -> dict[int, Array]:
    """The gradients of everything that led to a loss, by identity."""
    gradients: dict[int, Array] = {id(loss): np.ones_like(loss)}
    while TAPE:
        done = TAPE.pop()
        if id(done.output) in gradients:
            for array, gradient in zip(done.inputs, go_back(done, gradients[id(done.output)]), strict=True):
                known = gradients.get(id(array))
                gradients[id(array)] = gradient if known is None else known + gradient
    return gradients


class Layer:
    """A linear layer with relu."""

    def __init__(self, random: np.random.Generator, inputs: int, outputs: int) -> None:
        self.parameters = {
            "weight": random.normal(size=(inputs, outputs)).astype(np.float32),
            "bias": np.zeros(outputs, np.float32),
        }

    def __call__(self, x: Array) -> Array:
        return relu(add(matmul(x, self.parameters["weight"]), self.parameters["bias"]))


class Model:
    """Layers, one after the other."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self.layers = list(layers)

    def __call__(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer(x)
        return x


class Descent:
    """Goes down the gradients."""

    def __init__(self, model: Model, rate: float) -> None:
        self.rate = rate
        self.parameters: dict[str, Any] = {
            f"model.layers.{number}.{name}": parameter
            for number, layer in enumerate(model.layers)
            for name, parameter in layer.parameters.items()
        }

    def step(self, gradients: dict[int, Array]) -> None:
        for parameter in self.parameters.values():
            parameter -= np.float32(self.rate) * gradients[id(parameter)]
