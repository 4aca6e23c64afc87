"""LeNet and ResNet18 as Flax modules.

The layers are those of `flax.nnx`, except for the product of a convolution (`conv2d`) and for batch
normalisation, which may be frozen. All kernels are zero: `convnets` draws them.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx
from iterlin.networks.convolution import conv2d, conv2d_max_pool2
from jaxtyping import Array, Float

# Added to the variance before its square root is taken.
EPSILON = 1e-5
RESNET_STRIDES = (1, 2, 2, 2)
RESNET_BLOCKS = 2

# The weight of the old running statistics when a batch updates them.
MOMENTUM = 0.9


class LeNet(nnx.Module):
    """LeNet, as `convnets.lenet` describes it.

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
    """Batch normalisation as `convnets.resnet18` describes it, with momentum 0.9.

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
    """ResNet18, as `convnets.resnet18` describes it; unit: normalization and method of a `Unit`."""

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
