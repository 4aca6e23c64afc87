"""Convolutional networks as pure functions of (params, x), images x of shape (N, H, W, C)."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.convolution import METHODS, PADDINGS, conv2d, in_slices, max_pool2, output_size
from iterlin.models import Model
from iterlin.validation import one_of, positive_integer

# Variance of a weight times its fan-in.
GAINS = {"lecun": 1.0, "he": 2.0}

# Examples treated at once on a CPU: few enough for a layer's patches to stay in cache.
CPU_SLICE = 8


def lenet(
    input_shape: tuple[int, int, int],
    *,
    channels: int = 50,
    kernel_size: int = 5,
    padding: str = "VALID",
    hidden: tuple[int, ...] = (120, 84),
    classes: int = 10,
    weight: str = "lecun",
    slice_size: int | str | None = "auto",
    method: str = "auto",
) -> Model:
    """LeNet: two convolutions, each with ReLU and 2 x 2 max-pooling, then dense layers with ReLU.

    Weights are drawn from N(0, 1/fan_in) (lecun; not truncated) or N(0, 2/fan_in) (he), biases are
    zero. Parameters are {"conv1": {"weight": (k, k, C, channels), "bias"}, "conv2": ..., "dense1":
    {"weight": (fan_in, fan_out), "bias"}, ...}; (32, 32, 3) and the defaults make 227,484 numbers.

    Examples are treated `slice_size` at a time (see `convolution.in_slices`), all at once for None;
    auto is 8 on a CPU, None elsewhere. `method` is that of `convolution.conv2d`.

    Raises ValueError for sizes that are not positive integers, an unknown padding, weight or
    method, or an image too small for the kernels and pools.
    """
    height, width, depth = _check_images(input_shape, classes=classes, channels=channels)
    positive_integer("kernel_size", kernel_size)
    for size in hidden:
        positive_integer("hidden", size)
    one_of("padding", padding, PADDINGS)
    one_of("weight", weight, GAINS)
    one_of("method", method, METHODS)
    slice_size = _slice_size(slice_size)
    for _ in range(2):
        height, width = output_size((height, width), (kernel_size, kernel_size), 1, padding)
        height, width = height // 2, width // 2
        if min(height, width) < 1:
            raise ValueError(
                f"an image of {input_shape[0]} x {input_shape[1]} is too small for two "
                f"{kernel_size} x {kernel_size} convolutions ({padding}) and 2 x 2 pools"
            )
    widths = (height * width * channels, *hidden, classes)
    shapes = {
        "conv1": (kernel_size, kernel_size, depth, channels),
        "conv2": (kernel_size, kernel_size, channels, channels),
        **{f"dense{i + 1}": widths[i : i + 2] for i in range(len(widths) - 1)},
    }

    def init(key):
        return {
            name: {
                "weight": _weight(jax.random.fold_in(key, index), shape, GAINS[weight]),
                "bias": jnp.zeros(shape[-1]),
            }
            for index, (name, shape) in enumerate(shapes.items())
        }

    def apply(params, x: Float[Array, "N H W C"]) -> Float[Array, "N O"]:
        h = lenet_activations(params, x, padding=padding, method=method)["conv2"]
        h = h.reshape(len(h), -1)
        for index in range(1, len(widths)):
            layer = params[f"dense{index}"]
            h = jax.nn.relu(h) if index > 1 else h
            h = h @ layer["weight"] + layer["bias"][None, :]
        return h

    return Model(init, in_slices(apply, slice_size) if slice_size else apply)


def lenet_activations(
    params: PyTree,
    x: Float[Array, "N H W C"],
    *,
    padding: str = "VALID",
    method: str = "auto",
) -> dict[str, Array]:
    """Features of a `lenet`: {"conv1", "conv2"}, each (N, h, w, channels), after ReLU and pooling.

    `padding` must be the network's own. All N examples at once: wrap it in `convolution.in_slices`
    for many.
    """
    activations, h = {}, x
    for name in ("conv1", "conv2"):
        layer = params[name]
        h = conv2d(h, layer["weight"], padding=padding, method=method)
        # ReLU commutes with the maximum, and a bias common to the block with both.
        h = jax.nn.relu(max_pool2(h) + layer["bias"][None, None, None, :])
        activations[name] = h
    return activations


def _weight(key, shape, gain: float):
    """Normal, of variance gain / fan_in."""
    return math.sqrt(gain / math.prod(shape[:-1])) * jax.random.normal(key, shape)


def _slice_size(size) -> int | None:
    if size == "auto":
        return CPU_SLICE if jax.default_backend() == "cpu" else None
    if size is not None:
        positive_integer("slice_size", size)
    return size


def _check_images(shape, **sizes) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(f"input_shape must be (height, width, channels), got {tuple(shape)}")
    for size in shape:
        positive_integer("input_shape", size)
    for name, size in sizes.items():
        positive_integer(name, size)
    return tuple(shape)
