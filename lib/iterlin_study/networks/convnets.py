"""LeNet and ResNet18 for images x (N, H, W, C), as pure functions.

Each function returns a pair init(key) -> params and apply(params, x) -> outputs, which it makes
from a Flax module of `modules`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from iterlin.linearise.slices import in_slices
from iterlin.linearise.validation import (
    check_one_of,
    check_positive_integer,
    check_positive_integers,
)
from iterlin.networks.adapters import from_nnx
from iterlin.networks.convolution import METHODS, PADDINGS, POOLED_METHODS, output_size
from iterlin.networks.mlp import Model
from iterlin.networks.normalization import Normalization
from jaxtyping import Array, Float, PyTree

from iterlin_study.networks.modules import RESNET_STRIDES, LeNet, ResNet18

# The variance of a weight is its gain over its fan-in.
GAINS = {"lecun": 1.0, "he": 2.0}

NORMALIZATIONS = (None, "batch", "frozen")

# On a CPU, networks with more than LARGE_PATCHES numbers in the patches of one example are applied
# to CPU_SLICE examples at a time, so that the patches stay in cache.
CPU_SLICE = 8
LARGE_PATCHES = 50_000


class NormalizedModel(NamedTuple):
    """An `iterlin` model whose `apply` may couple its examples, with its modes.

    Attributes:
        init: Function from a PRNG key to parameters, a pytree.
        apply: Function from (params, x) to outputs (N, ...), in training.
        normalization: Both modes; None if the network has no normalisation.
    """

    init: Callable[[Array], PyTree]
    apply: Callable[[PyTree, Array], Array]
    normalization: Normalization | None


def lenet(
    input_shape: tuple[int, int, int],
    *,
    channels: int = 50,
    kernel_size: int = 5,
    padding: str = "VALID",
    hidden: tuple[int, ...] = (120, 84),
    classes: int = 10,
    weight: str = "lecun",
    method: str = "auto",
) -> Model:
    """Return LeNet: two convolutions with ReLU and 2 x 2 max-pooling, then dense layers with ReLU.

    Source: LeCun, Bottou, Bengio & Haffner (1998), Gradient-based learning applied to document
    recognition; with the defaults, 227,484 parameters for images (32, 32, 3).

    Args:
        input_shape: (H, W, C) of the images.
        channels: Output channels of each convolution.
        kernel_size: Rows and columns of each filter.
        padding, method: As of `convolution.conv2d_max_pool2`.
        hidden: Widths of the hidden dense layers.
        classes: Number of outputs.
        weight: "lecun" draws weights from N(0, 1/fan_in), not truncated, and "he" from
            N(0, 2/fan_in). Biases are zero.

    Returns:
        A `Model` with parameters {"conv1": {"kernel": (k, k, C, channels), "bias"}, "conv2": ...,
        "dense1": {"kernel": (fan_in, fan_out), "bias"}, ...} and outputs (N, classes).

    Raises:
        ValueError: If an argument is not allowed, or the image is too small for filters and pools.
    """
    height, width, depth = _checked_shape(input_shape, classes=classes, channels=channels)
    check_positive_integer("kernel_size", kernel_size)
    check_positive_integers("hidden", hidden)
    check_one_of("padding", padding, PADDINGS)
    check_one_of("weight", weight, GAINS)
    check_one_of("method", method, POOLED_METHODS)
    patches = 0
    for inputs in (depth, channels):
        fits = padding == "SAME" or min(height, width) >= kernel_size
        window = (kernel_size, kernel_size)
        height, width = output_size((height, width), window, 1, padding) if fits else (0, 0)
        patches += height * width * kernel_size**2 * inputs
        height, width = height // 2, width // 2
    if min(height, width) < 1:
        raise ValueError(
            f"an image of {input_shape[0]} x {input_shape[1]} is too small for two "
            f"{kernel_size} x {kernel_size} convolutions ({padding}) and 2 x 2 pools"
        )
    large = patches > LARGE_PATCHES and jax.default_backend() == "cpu"
    widths = (height * width * channels, *hidden, classes)
    net = from_nnx(LeNet(depth, channels, kernel_size, widths, padding=padding, method=method))
    apply = in_slices(net.f, CPU_SLICE) if large else net.f
    return Model(_initializer(net.params, GAINS[weight]), apply)


def lenet_activations(
    params: PyTree, x: Float[Array, "N H W C"], *, padding: str = "VALID"
) -> dict[str, Array]:
    """Return the activations of a `lenet` after each convolution, ReLU and pooling.

    padding is that of the network. For many examples, wrap this function in
    `slices.in_slices`. Returns {"conv1": (N, h, w, channels), "conv2": (N, h, w, channels)}.
    """
    size, _, depth, channels = params["conv1"]["kernel"].shape
    net = nnx.eval_shape(lambda: LeNet(depth, channels, size, (), padding=padding, method="auto"))
    layers = {name: params[name] for name in ("conv1", "conv2")}
    return nnx.merge(nnx.graphdef(net), layers).activations(x)


def resnet18(
    input_shape: tuple[int, int, int],
    *,
    width: int = 64,
    classes: int = 10,
    normalization: str | None = None,
    method: str = "auto",
) -> NormalizedModel:
    """Return ResNet18 for small images: a 3 x 3 stem without pooling, and 4 stages of 2 blocks.

    The stages have 1, 2, 4 and 8 times `width` channels and strides 1, 2, 2, 2. A shortcut that
    changes the shape is a 1 x 1 convolution. The dense layer takes means over the image.
    Convolutions are SAME, have no bias, and are drawn from N(0, 1/fan_in).

    Source: He, Zhang, Ren & Sun (2016), Deep residual learning for image recognition. For images
    (32, 32, 3) and width 64 there are 11,164,362 parameters, 11,173,962 with normalisation.

    Args:
        input_shape: (H, W, C) of the images, 8 x 8 at least.
        width: Channels of the first stage.
        classes: Number of outputs.
        normalization: "batch" normalises by the mean and the biased variance of the batch over
            examples and positions, (h - mean) / sqrt(variance + 1e-5), and a linearisation contains
            their derivatives. "frozen" computes the same outputs, but takes mean and variance for
            constants, so that a linearisation keeps those of the batch at theta_s. None has no
            normalisation. With "batch" and "frozen" the output for a batch of one image of at most
            8 x 8 does not depend on the image, as the last stage is normalised to zero.
        method: Method of `convolution.conv2d`.

    Returns:
        A `NormalizedModel` with parameters {"stem": {"conv": {"kernel"}}, "stage1_block1":
        {"conv1": ..., "conv2": ...}, ..., "stage2_block1": {..., "shortcut": ...}, ..., "dense":
        {"kernel", "bias"}} and outputs (N, classes). With normalisation, each "conv" has a "norm":
        {"scale" (1 at the start), "bias" (0)} beside it. Raises ValueError as `lenet`.
    """
    height, image_width, depth = _checked_shape(input_shape, classes=classes, width=width)
    if normalization not in NORMALIZATIONS:
        raise ValueError(f"unknown normalization {normalization!r}; allowed: None, batch, frozen")
    check_one_of("method", method, METHODS)
    if min(height, image_width) < math.prod(RESNET_STRIDES):
        raise ValueError(f"an image of {height} x {image_width} is too small: 8 x 8 at least")
    net = from_nnx(ResNet18(depth, width, classes, normalization=normalization, method=method))
    return NormalizedModel(_initializer(net.params), net.f, net.settings.get("normalization"))


def _initializer(params: PyTree, gain: float = 1.0) -> Callable[[Array], PyTree]:
    """Return init(key), which draws kernels from N(0, gain / fan_in) and copies vectors."""
    leaves, tree = jax.tree.flatten(params)
    shapes = [leaf.shape for leaf in leaves]
    vectors = [leaf if leaf.ndim == 1 else None for leaf in leaves]
    sizes = [leaf.size if leaf.ndim > 1 else 0 for leaf in leaves]

    def init(key):
        # One draw is cut into pieces, because a draw for each of 21 layers takes long to compile.
        pieces = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
        drawn = [
            math.sqrt(gain / math.prod(shape[:-1])) * piece.reshape(shape)
            if vector is None
            else vector
            for shape, vector, piece in zip(shapes, vectors, pieces, strict=True)
        ]
        return jax.tree.unflatten(tree, drawn)

    return init


def _checked_shape(shape, **sizes) -> tuple[int, int, int]:
    """Return the shape (H, W, C) of an image, or raise ValueError if it or another size is bad."""
    check_positive_integers("input_shape", shape)
    if len(shape) != 3:
        raise ValueError(f"input_shape must be (height, width, channels), got {tuple(shape)}")
    for name, size in sizes.items():
        check_positive_integer(name, size)
    height, width, channels = shape
    return height, width, channels
