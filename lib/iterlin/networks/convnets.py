"""Convolutional networks as pure functions of (params, x), images x of shape (N, H, W, C)."""

import itertools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.networks.convolution import METHODS, PADDINGS, conv2d, max_pool2, output_size
from iterlin.networks.mlp import Model
from iterlin.networks.normalization import NORMALIZATIONS, Normalization, NormalizedModel, normalize
from iterlin.runtime.slices import in_slices
from iterlin.validation import one_of, positive_integer

# Variance of a weight times its fan-in.
GAINS = {"lecun": 1.0, "he": 2.0}

# Examples treated at once on a CPU, where the patches of one take more numbers than LARGE_PATCHES:
# few enough to stay in cache. Small images are faster all at once.
CPU_SLICE = 8
LARGE_PATCHES = 50_000

RESNET_STRIDES = (1, 2, 2, 2)
RESNET_BLOCKS = 2


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

    Examples are treated `slice_size` at a time (see `slices.in_slices`), all at once for None;
    auto is 8 on a CPU if the patches of one example take over 50,000 numbers, otherwise None.
    `method` is that of `convolution.conv2d`.

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
    if slice_size not in (None, "auto"):
        positive_integer("slice_size", slice_size)
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

    `padding` must be the network's own. For many examples, wrap it in `slices.in_slices`.
    """
    activations, h = {}, x
    for name in ("conv1", "conv2"):
        layer = params[name]
        h = conv2d(h, layer["weight"], padding=padding, method=method)
        # ReLU commutes with the maximum, and a bias common to the block with both.
        h = jax.nn.relu(max_pool2(h) + layer["bias"][None, None, None, :])
        activations[name] = h
    return activations


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
    simply removed, has biases in the dense layer alone. Parameters are {"stem": {"weight"},
    "stage1_block1_conv1": {"weight"}, ..., "stage2_block1_shortcut": {"weight"}, ..., "dense":
    {"weight", "bias"}}; normalised ones add "scale" (initially 1) and "bias" (0) to each but
    "dense". (32, 32, 3) and width 64 make 11,164,362 numbers, normalised ones 11,173,962.

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
    one_of("method", method, METHODS)
    if min(height, image_width) < math.prod(RESNET_STRIDES):
        raise ValueError(f"an image of {height} x {image_width} is too small: 8 x 8 at least")
    shapes = _resnet_shapes(depth, width, classes)

    def init(key):
        # One draw cut into pieces: a draw for each of 21 layers takes long to compile.
        sizes = [math.prod(shape) for shape in shapes.values()]
        cuts = list(itertools.accumulate(sizes))
        drawn, params = jnp.split(jax.random.normal(key, (cuts[-1],)), cuts[:-1]), {}
        for (name, shape), numbers in zip(shapes.items(), drawn, strict=True):
            scale = 1 / math.sqrt(math.prod(shape[:-1]))
            params[name] = {"weight": scale * numbers.reshape(shape)}
            if name == "dense" or normalization:
                params[name]["bias"] = jnp.zeros(shape[-1])
            if name != "dense" and normalization:
                params[name]["scale"] = jnp.ones(shape[-1])
        return params

    def forward(params, x, statistics=None):
        """Outputs and the batch's statistics; given others, uses them and finds none."""
        found = {}

        def unit(name, h, stride=1):
            layer = params[name]
            h = conv2d(h, layer["weight"], stride=stride, padding="SAME", method=method)
            if normalization is None:
                return h
            if statistics is not None:
                moments = statistics[name]
            else:
                moments = {"mean": h.mean((0, 1, 2)), "variance": h.var((0, 1, 2))}
                found[name] = jax.lax.stop_gradient(moments)
                moments = found[name] if normalization == "frozen" else moments
            return normalize(h, **moments, scale=layer["scale"], bias=layer["bias"])

        h = jax.nn.relu(unit("stem", x))
        for stage, first in enumerate(RESNET_STRIDES, start=1):
            for block in range(1, RESNET_BLOCKS + 1):
                name, stride = f"stage{stage}_block{block}", first if block == 1 else 1
                inner = jax.nn.relu(unit(f"{name}_conv1", h, stride))
                inner = unit(f"{name}_conv2", inner)
                shortcut = f"{name}_shortcut"
                h = jax.nn.relu(inner + (unit(shortcut, h, stride) if shortcut in shapes else h))
        h = h.mean((1, 2)) @ params["dense"]["weight"]
        return h + params["dense"]["bias"][None, :], found

    def apply(params, x: Float[Array, "N H W C"]) -> Float[Array, "N O"]:
        return forward(params, x)[0]

    if normalization is None:
        return NormalizedModel(init, apply, None)
    initial = {
        name: {"mean": jnp.zeros(shape[-1]), "variance": jnp.ones(shape[-1])}
        for name, shape in shapes.items()
        if name != "dense"
    }

    def evaluate(params, statistics, x: Float[Array, "N H W C"]) -> Float[Array, "N O"]:
        return forward(params, x, statistics)[0]

    def apply_with_statistics(params, x: Float[Array, "N H W C"]):
        return forward(params, x)

    return NormalizedModel(init, apply, Normalization(initial, apply_with_statistics, evaluate))


def _resnet_shapes(depth: int, width: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights, in the order in which they are drawn."""
    shapes, inputs = {"stem": (3, 3, depth, width)}, width
    for stage, stride in enumerate(RESNET_STRIDES, start=1):
        outputs = width * 2 ** (stage - 1)
        for block in range(1, RESNET_BLOCKS + 1):
            name = f"stage{stage}_block{block}"
            shapes[f"{name}_conv1"] = (3, 3, inputs, outputs)
            shapes[f"{name}_conv2"] = (3, 3, outputs, outputs)
            if block == 1 and (stride != 1 or inputs != outputs):
                shapes[f"{name}_shortcut"] = (1, 1, inputs, outputs)
            inputs = outputs
    return shapes | {"dense": (inputs, classes)}


def _weight(key, shape, gain: float):
    """Normal, of variance gain / fan_in."""
    return math.sqrt(gain / math.prod(shape[:-1])) * jax.random.normal(key, shape)


def _check_images(shape, **sizes) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(f"input_shape must be (height, width, channels), got {tuple(shape)}")
    for size in shape:
        positive_integer("input_shape", size)
    for name, size in sizes.items():
        positive_integer(name, size)
    return tuple(shape)
