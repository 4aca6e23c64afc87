"""Convolution and pooling of images (N, H, W, C), and networks applied a few examples at a time.

On a GPU a convolution is best left to cuDNN; on a CPU, copying the patches and multiplying once is
faster, the more so the fewer examples are treated at once, as their activations then stay in cache.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.linearization import Network
from iterlin.validation import one_of, positive_integer

PADDINGS = ("SAME", "VALID")
METHODS = ("auto", "direct", "patches")


def conv2d(
    x: Float[Array, "N H W C"],
    kernel: Float[Array, "k l C O"],
    *,
    stride: int = 1,
    padding: str = "VALID",
    method: str = "auto",
) -> Float[Array, "N h w O"]:
    """Cross-correlation of images with `kernel`, the same stride in both directions.

    VALID leaves ``(H - k) // stride + 1`` rows; SAME pads with zeros to ``ceil(H / stride)``, the
    odd one below and to the right (as TensorFlow and flax do; PyTorch's padding=1 differs where
    stride 2 meets an even side). direct is XLA's own convolution, patches a copy of every k x l
    patch and one matrix product; auto takes patches on a CPU and direct elsewhere.

    Raises ValueError for an unknown padding or method, a stride that is not a positive integer, a
    kernel for other channels, or one that does not fit into the image (VALID).
    """
    one_of("padding", padding, PADDINGS)
    one_of("method", method, METHODS)
    positive_integer("stride", stride)
    if x.shape[-1] != kernel.shape[2]:
        raise ValueError(f"kernel is for {kernel.shape[2]} channels, images have {x.shape[-1]}")
    output_size(x.shape[1:3], kernel.shape[:2], stride, padding)
    if method == "auto":
        method = "patches" if jax.default_backend() == "cpu" else "direct"
    dtype = jnp.result_type(x, kernel)
    x, kernel = x.astype(dtype), kernel.astype(dtype)
    if method == "direct":
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    pads = jax.lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], (stride, stride), padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    return _patches(x, *kernel.shape[:2], stride) @ kernel.reshape(-1, kernel.shape[-1])


def _patches(x, rows: int, columns: int, stride: int):
    """(N, h, w, rows * columns * C): columns first, then rows, k + l copies rather than k l."""
    across = _windows(x, 2, columns, stride)
    return _windows(across, 1, rows, stride)


def _windows(x, axis: int, size: int, stride: int):
    last = x.shape[axis] - size
    shifts = [
        jax.lax.slice_in_dim(x, i, i + last + 1, stride=stride, axis=axis) for i in range(size)
    ]
    return shifts[0] if size == 1 else jnp.concatenate(shifts, axis=-1)


def output_size(
    image: tuple[int, int], kernel: tuple[int, int], stride: int = 1, padding: str = "VALID"
) -> tuple[int, int]:
    """Height and width after a convolution; ValueError where the kernel does not fit (VALID)."""
    if padding == "SAME":
        return tuple(-(-side // stride) for side in image)
    if any(side < size for side, size in zip(image, kernel, strict=True)):
        raise ValueError(
            f"a {kernel[0]} x {kernel[1]} kernel does not fit into a {image[0]} x {image[1]} image"
        )
    return tuple((side - size) // stride + 1 for side, size in zip(image, kernel, strict=True))


def max_pool2(x: Float[Array, "N H W C"]) -> Float[Array, "N h w C"]:
    """Maximum over 2 x 2 blocks, stride 2; the last row or column of an odd side is left out.

    Where k entries of a block tie, each gets 1/k of the derivative.
    Raises ValueError for an image smaller than one block.
    """
    count, height, width, channels = x.shape
    if min(height, width) < 2:
        raise ValueError(f"an image of {height} x {width} is too small for 2 x 2 pooling")
    height, width = height // 2, width // 2
    blocks = x[:, : 2 * height, : 2 * width].reshape(count, height, 2, width, 2, channels)
    return blocks.max((2, 4))


def in_slices(f: Network, size: int) -> Callable[[PyTree, Array], PyTree]:
    """The same function of (params, x), evaluated on `size` examples at a time, one after another.

    f must treat its examples independently: its outputs, an array or a pytree of arrays, lead with
    N. Linearisation and transposition go through, and keep the slices. The remainder of N / size
    is a smaller slice of its own; N <= size is f itself.

    Raises ValueError if size is not a positive integer.
    """
    positive_integer("size", size)

    def sliced(params, x):
        whole = len(x) - len(x) % size
        if len(x) <= size:
            return f(params, x)
        parts = x[:whole].reshape(-1, size, *x.shape[1:])
        outputs = jax.lax.map(lambda part: f(params, part), parts)
        outputs = jax.tree.map(lambda a: a.reshape(whole, *a.shape[2:]), outputs)
        if whole == len(x):
            return outputs
        return jax.tree.map(lambda *a: jnp.concatenate(a), outputs, f(params, x[whole:]))

    return sliced
