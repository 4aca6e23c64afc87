"""Convolution and pooling of images (N, H, W, C).

On a GPU a convolution is best left to cuDNN; on a CPU, copying the patches and multiplying once is
faster, the more so the fewer examples are treated at once (`slices`).
"""

from collections.abc import Callable
from itertools import product

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from iterlin.linearise.validation import check_one_of, check_positive_integer
from iterlin.networks import winograd

PADDINGS = ("SAME", "VALID")
METHODS = ("auto", "direct", "patches")
POOLED_METHODS = (*METHODS, "blocks", "winograd")
# On a CPU a pooled convolution between at least so many channels is fastest by Winograd's products,
WIDE = 16
# and one that leads to at most so many in blocks.
NARROW = 12


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
    check_one_of("method", method, METHODS)
    check_positive_integer("stride", stride)
    _output_size(x, kernel, stride, padding)
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
    # Written so, the kernel's derivative is U^T X with the patches X row by row, two to three times
    # as fast on a CPU as X^T U, which XLA would make of it without the barrier.
    rows = jax.lax.optimization_barrier(kernel.reshape(-1, kernel.shape[-1]).T)
    patches = _patches(x, *kernel.shape[:2], stride)
    return jax.lax.dot_general(patches, rows, (((3,), (1,)), ((), ())))


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


def _output_size(x, kernel, stride, padding) -> tuple[int, int]:
    check_one_of("padding", padding, PADDINGS)
    if x.shape[-1] != kernel.shape[2]:
        raise ValueError(f"kernel is for {kernel.shape[2]} channels, images have {x.shape[-1]}")
    return output_size(x.shape[1:3], kernel.shape[:2], stride, padding)


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
    height, width = _pooled_size(x.shape[1:3])
    count, channels = len(x), x.shape[-1]
    blocks = x[:, : 2 * height, : 2 * width].reshape(count, height, 2, width, 2, channels)
    return _block_max(blocks)


def conv2d_max_pool2(
    x: Float[Array, "N H W C"],
    kernel: Float[Array, "k l C O"],
    *,
    padding: str = "VALID",
    method: str = "auto",
) -> Float[Array, "N h w O"]:
    """`max_pool2` of `conv2d` with stride 1, at once or one after the other.

    blocks makes the four outputs that are pooled in one row of a matrix product: of a patch of
    k + 1 by l + 1, with the kernel shifted to each of its corners. With 5 x 5 these are 1.4 times
    the multiplications and a third of the copies, of products that are four times as wide. winograd
    has them from short products (`winograd.corner_outputs`), with 5 x 5 0.36 times as many, for
    kernels of at most that size; in float32 it rounds two to three times as coarsely as the others,
    and may part what ties exactly. On a CPU and for more than one image (in the program of a single
    one `kernels` look for layers) auto takes winograd between at least 16 channels C and O, blocks
    for at most 12 channels O; otherwise it takes what conv2d takes.

    Raises ValueError as these two do, and for a larger kernel with winograd.
    """
    check_one_of("method", method, POOLED_METHODS)
    if method == "auto" and len(x) > 1 and jax.default_backend() == "cpu":
        method = _fastest(kernel.shape)
    if method not in ("blocks", "winograd"):
        return max_pool2(conv2d(x, kernel, padding=padding, method=method))
    _pooled_size(_output_size(x, kernel, 1, padding))
    pads = jax.lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], (1, 1), padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    if method == "winograd":
        dtype = jnp.result_type(x, kernel)
        return _corner_max(winograd.corner_outputs(x.astype(dtype), kernel.astype(dtype)))
    corners = [
        jnp.pad(kernel, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0)))
        for i, j in product((0, 1), (0, 1))
    ]
    outputs = conv2d(x, jnp.concatenate(corners, axis=-1), stride=2, method="patches")
    return _corner_max(outputs.reshape(*outputs.shape[:3], 4, -1))


def _fastest(shape: tuple[int, ...]) -> str:
    *size, inputs, outputs = shape
    if min(inputs, outputs) >= WIDE and min(size) > 1 and max(size) <= winograd.LARGEST:
        return "winograd"
    return "blocks" if outputs <= NARROW else "patches"


def _pooled_size(image: tuple[int, int]) -> tuple[int, int]:
    height, width = image
    if min(height, width) < 2:
        raise ValueError(f"an image of {height} x {width} is too small for 2 x 2 pooling")
    return height // 2, width // 2


def _max_over(axes: tuple[int, ...]) -> Callable[[Array], Array]:
    """The maximum over axes, with JAX's own derivative, but for how ties are counted: a sum over a
    block is a pass of its own to XLA, and writes three arrays of the block's size."""

    @jax.custom_jvp
    def _block_max(blocks):
        return blocks.max(axes)

    @_block_max.defjvp
    def _block_max_jvp(primals, tangents):
        (blocks,), (direction,) = primals, tangents

        def at(*indices):
            index = dict(zip(axes, indices, strict=True))
            return tuple(index.get(axis, slice(None)) for axis in range(blocks.ndim))

        # Readers that make it anew may round it otherwise: then no entry is the largest.
        blocks = jax.lax.optimization_barrier(blocks)
        largest = _block_max(blocks)
        hit = blocks == largest[at(*[None] * len(axes))]
        entries = product(*(range(blocks.shape[axis]) for axis in axes))
        ties = sum(hit[at(*entry)].astype(blocks.dtype) for entry in entries)
        return largest, jnp.where(hit, direction, 0).sum(axes) / ties

    return _block_max


_block_max = _max_over((2, 4))  # of (N, h, 2, w, 2, C)
_corner_max = _max_over((3,))  # of (N, h, w, 4, C)
