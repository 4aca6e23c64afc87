"""Convolutional networks for images x of shape (N, H, W, C): Flax modules, taken apart once.

The modules are made of `flax.nnx`'s own layers, but for the product in a convolution (`conv2d`) and
for batch normalisation, which may be frozen. `lenet` and `resnet18` make pure functions of them,
init(key) -> params and apply(params, x) -> outputs, as `adapters.from_nnx` does of any module.
"""

import math

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
from iterlin.networks.normalization import NORMALIZATIONS, NormalizedModel
from jaxtyping import Array, Float, PyTree

from iterlin_study.networks.modules import RESNET_STRIDES, LeNet, ResNet18

# Variance of a weight times its fan-in.
GAINS = {"lecun": 1.0, "he": 2.0}

# Examples treated at once on a CPU, where the patches of one take more numbers than LARGE_PATCHES:
# few enough to stay in cache. Small images are faster all at once.
CPU_SLICE = 8
LARGE_PATCHES = 50_000


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
    zero. Parameters are {"conv1": {"kernel": (k, k, C, channels), "bias"}, "conv2": ..., "dense1":
    {"kernel": (fan_in, fan_out), "bias"}, ...}; (32, 32, 3) and the defaults make 227,484 numbers.

    Examples are treated `slice_size` at a time (see `slices.in_slices`), all at once for None;
    auto is 8 on a CPU if the patches of one example take over 50,000 numbers, otherwise None.
    `method` is that of `convolution.conv2d_max_pool2`.

    Raises ValueError for sizes that are not positive integers, an unknown padding, weight or
    method, or an image too small for the kernels and pools.
    """
    height, width, depth = _check_images(input_shape, classes=classes, channels=channels)
    check_positive_integer("kernel_size", kernel_size)
    check_positive_integers("hidden", hidden)
    check_one_of("padding", padding, PADDINGS)
    check_one_of("weight", weight, GAINS)
    check_one_of("method", method, POOLED_METHODS)
    if slice_size not in (None, "auto"):
        check_positive_integer("slice_size", slice_size)
    patches, kernel = 0, (kernel_size, kernel_size)
    for inputs in (depth, channels):
        fits = padding == "SAME" or min(height, width) >= kernel_size
        height, width = output_size((height, width), kernel, 1, padding) if fits else (0, 0)
        patches += height * width * kernel_size**2 * inputs
        height, width = height // 2, width // 2
    if min(height, width) < 1:
        raise ValueError(
            f"an image of {input_shape[0]} x {input_shape[1]} is too small for two "
            f"{kernel_size} x {kernel_size} convolutions ({padding}) and 2 x 2 pools"
        )
    if slice_size == "auto":
        large = patches > LARGE_PATCHES and jax.default_backend() == "cpu"
        slice_size = CPU_SLICE if large else None
    widths = (height * width * channels, *hidden, classes)
    net = from_nnx(LeNet(depth, channels, kernel_size, widths, padding=padding, method=method))
    apply = in_slices(net.f, slice_size) if slice_size else net.f
    return Model(_init(net.params, GAINS[weight]), apply)


def lenet_activations(
    params: PyTree,
    x: Float[Array, "N H W C"],
    *,
    padding: str = "VALID",
    method: str = "auto",
) -> dict[str, Array]:
    """Features of a `lenet`: {"conv1", "conv2"}, each (N, h, w, channels), after ReLU and pooling.

    `padding` must be the network's own. For many examples, wrap it in `slices.in_slices`.
    """
    size, _, depth, channels = params["conv1"]["kernel"].shape
    settings = {"padding": padding, "method": method}
    net = nnx.eval_shape(lambda: LeNet(depth, channels, size, (), **settings))
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
    """ResNet18 for small images: a 3 x 3 stem of stride 1, no pooling, and 4 stages of 2 blocks.

    Stages have width, 2, 4 and 8 times width channels and strides 1, 2, 2, 2; a shortcut that
    changes shape is a 1 x 1 convolution; means over the image feed the dense layer. Convolutions
    are SAME, N(0, 1/fan_in) and have no bias, so `normalization=None`, where normalisation is
    simply removed, has biases in the dense layer alone. Parameters are {"stem": {"conv":
    {"kernel"}}, "stage1_block1": {"conv1": ..., "conv2": ...}, ..., "stage2_block1": {...,
    "shortcut": ...}, ..., "dense": {"kernel", "bias"}}; normalised ones add "norm": {"scale"
    (initially 1), "bias" (0)} to each "conv". (32, 32, 3) and width 64 make 11,164,362 numbers,
    normalised ones 11,173,962.

    normalization: batch has apply use the mean and the biased variance of this very batch over
    examples and positions, (h - mean) / sqrt(variance + 1e-5), and a linearisation at theta_s sees
    their derivatives. frozen is the same function, but takes both for constants: its linearisation
    keeps the statistics of the batch at theta_s. With both, a batch of one image of at most 8 x 8
    says nothing, as its last stage is normalised to zero.

    Raises ValueError for sizes that are not positive integers, an unknown normalization or method,
    or an image below 8 x 8, the product of the strides.
    """
    height, image_width, depth = _check_images(input_shape, classes=classes, width=width)
    if normalization not in NORMALIZATIONS:
        raise ValueError(f"unknown normalization {normalization!r}; allowed: None, batch, frozen")
    check_one_of("method", method, METHODS)
    if min(height, image_width) < math.prod(RESNET_STRIDES):
        raise ValueError(f"an image of {height} x {image_width} is too small: 8 x 8 at least")
    net = from_nnx(ResNet18(depth, width, classes, normalization=normalization, method=method))
    return NormalizedModel(_init(net.params), net.f, net.settings.get("normalization"))


def _init(params: PyTree, gain: float = 1.0):
    """init(key): kernels from N(0, gain / fan_in), and all else as it is in params."""
    leaves, tree = jax.tree.flatten(params)
    shapes = [leaf.shape for leaf in leaves]
    sizes = [math.prod(shape) if len(shape) > 1 else 0 for shape in shapes]
    others = [leaf if leaf.ndim == 1 else None for leaf in leaves]

    def init(key):
        # One draw cut into pieces: a draw for each of 21 layers takes long to compile.
        drawn = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
        return jax.tree.unflatten(
            tree,
            [
                math.sqrt(gain / math.prod(shape[:-1])) * numbers.reshape(shape)
                if other is None
                else other
                for shape, numbers, other in zip(shapes, drawn, others, strict=True)
            ],
        )

    return init


def _check_images(shape, **sizes) -> tuple[int, int, int]:
    check_positive_integers("input_shape", shape)
    if len(shape) != 3:
        raise ValueError(f"input_shape must be (height, width, channels), got {tuple(shape)}")
    for name, size in sizes.items():
        check_positive_integer(name, size)
    return tuple(shape)
