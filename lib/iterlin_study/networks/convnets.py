"""LeNet and ResNet18 for images x (N, H, W, C), as pure functions.

Each function returns a pair init(key) -> params and apply(params, x) -> outputs, which it makes
from a Flax module. The modules' layers are those of `flax.nnx`, except for the product of a
convolution (`conv2d`) and for batch normalisation, which may be frozen. The modules' kernels are
zero: `_initializer` draws them.
"""

import math
from collections.abc import Callable
from itertools import pairwise
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
from iterlin.networks.convolution import (
    METHODS,
    PADDINGS,
    POOLED_METHODS,
    conv2d,
    conv2d_max_pool2,
    output_size,
)
from iterlin.networks.mlp import Model
from iterlin.networks.normalization import Normalization
from jaxtyping import Array, Float, PyTree

# The variance of a weight is its gain over its fan-in.
GAINS = {"lecun": 1.0, "he": 2.0}

NORMALIZATIONS = (None, "batch", "frozen")
# Added to the variance before its square root is taken.
EPSILON = 1e-5
RESNET_STRIDES = (1, 2, 2, 2)
RESNET_BLOCKS = 2
# The weight of the old running statistics when a batch updates them.
MOMENTUM = 0.9

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


class LeNet(nnx.Module):
    """LeNet, as `lenet` describes it.

    widths: number of inputs of the first dense layer, then the outputs of each dense layer.
    """

    def __init__(self, depth, channels, kernel_size, widths, *, padding, method):
        layer = {"padding": padding, "method": method, "pool": True}
        self.conv1 = _convolution(depth, channels, kernel_size, **layer)
        self.conv2 = _convolution(channels, channels, kernel_size, **layer)
        self.dense = len(widths) - 1
        for index, (inputs, outputs) in enumerate(pairwise(widths), start=1):
            setattr(self, f"dense{index}", nnx.Linear(inputs, outputs, **_zeros()))

    def activations(self, x):
        """Return the activations after each convolution, ReLU and pooling, (N, h, w, channels)."""
        first = jax.nn.relu(self.conv1(x))
        return {"conv1": first, "conv2": jax.nn.relu(self.conv2(first))}

    def __call__(self, x):
        h = self.activations(x)["conv2"].reshape(len(x), -1)
        for index in range(1, self.dense + 1):
            h = jax.nn.relu(h) if index > 1 else h
            h = getattr(self, f"dense{index}")(h)
        return h


class BatchNorm(nnx.Module):
    """Batch normalisation as `resnet18` describes it, with momentum 0.9.

    frozen: whether derivatives take the mean and the variance for constants.
    """

    def __init__(self, channels, *, frozen):
        self.scale = nnx.Param(jnp.ones(channels))
        self.bias = nnx.Param(jnp.zeros(channels))
        self.mean = nnx.BatchStat(jnp.zeros(channels))
        self.variance = nnx.BatchStat(jnp.ones(channels))
        self.frozen, self.use_running_average = frozen, False

    def __call__(self, h):
        if self.use_running_average:
            mean, variance = self.mean[...], self.variance[...]
        else:
            mean, variance = h.mean((0, 1, 2)), h.var((0, 1, 2))
            constant = jax.lax.stop_gradient((mean, variance))
            for running, batch in zip((self.mean, self.variance), constant, strict=True):
                running.set_value(MOMENTUM * running[...] + (1 - MOMENTUM) * batch)
            mean, variance = constant if self.frozen else (mean, variance)
        return normalize(h, mean, variance, scale=self.scale[...], bias=self.bias[...])


class Unit(nnx.Module):
    """A convolution without bias, and its normalisation if there is one."""

    def __init__(self, inputs, outputs, size, stride, *, normalization, method):
        settings = {"stride": stride, "padding": "SAME", "method": method, "use_bias": False}
        self.conv = _convolution(inputs, outputs, size, **settings)
        self.norm = BatchNorm(outputs, frozen=normalization == "frozen") if normalization else None

    def __call__(self, h):
        h = self.conv(h)
        return h if self.norm is None else self.norm(h)


class Block(nnx.Module):
    """A residual block: two convolutions, and a shortcut around them."""

    def __init__(self, inputs, outputs, stride, **unit):
        self.conv1 = Unit(inputs, outputs, 3, stride, **unit)
        self.conv2 = Unit(outputs, outputs, 3, 1, **unit)
        changed = stride != 1 or inputs != outputs
        self.shortcut = Unit(inputs, outputs, 1, stride, **unit) if changed else None

    def __call__(self, h):
        inner = self.conv2(jax.nn.relu(self.conv1(h)))
        return jax.nn.relu(inner + (h if self.shortcut is None else self.shortcut(h)))


class ResNet18(nnx.Module):
    """ResNet18, as `resnet18` describes it; unit: normalization and method of a `Unit`."""

    def __init__(self, depth, width, classes, **unit):
        self.stem = Unit(depth, width, 3, 1, **unit)
        blocks, inputs = [], width
        for stage, first in enumerate(RESNET_STRIDES, start=1):
            for block in range(1, RESNET_BLOCKS + 1):
                blocks.append(f"stage{stage}_block{block}")
                outputs, stride = width * 2 ** (stage - 1), first if block == 1 else 1
                setattr(self, blocks[-1], Block(inputs, outputs, stride, **unit))
                inputs = outputs
        self.blocks = tuple(blocks)
        self.dense = nnx.Linear(inputs, classes, **_zeros())

    def __call__(self, x):
        h = jax.nn.relu(self.stem(x))
        for name in self.blocks:
            h = getattr(self, name)(h)
        return self.dense(h.mean((1, 2)))


def _convolution(inputs, outputs, size, *, stride=1, method, pool=False, **settings) -> nnx.Conv:
    """Return a convolution layer that calls `conv2d`, or `conv2d_max_pool2` if `pool` is True.

    The layer adds its bias after pooling, which gives the same outputs as before.
    """

    def product(x, kernel, strides, padding, **_):
        if pool:
            return conv2d_max_pool2(x, kernel, padding=padding, method=method)
        return conv2d(x, kernel, stride=stride, padding=padding, method=method)

    settings |= {"strides": stride, "conv_general_dilated": product} | _zeros()
    return nnx.Conv(inputs, outputs, (size, size), **settings)


def _zeros() -> dict:
    """Return the settings of a layer with zero parameters of the default floating point type."""
    zeros, dtype = nnx.initializers.zeros_init(), jnp.result_type(float)
    return {"kernel_init": zeros, "param_dtype": dtype, "rngs": nnx.Rngs(0)}


def normalize(
    h: Float[Array, "*N C"],
    mean: Float[Array, " C"],
    variance: Float[Array, " C"],
    scale: Float[Array, " C"],
    bias: Float[Array, " C"],
) -> Float[Array, "*N C"]:
    """Return scale (h - mean) / sqrt(variance + 1e-5) + bias for each channel.

    Source: Ioffe & Szegedy (2015), Batch normalization.
    """
    align = (1,) * (h.ndim - 1) + (-1,)
    factor = (scale / jnp.sqrt(variance + EPSILON)).reshape(align)
    return (h - mean.reshape(align)) * factor + bias.reshape(align)
