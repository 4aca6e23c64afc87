"""Convolution and max-pooling of images (N, H, W, C), written to be fast on CPUs.

On a GPU cuDNN's convolution is best. On a CPU it is faster to copy the patches and multiply once by
the filters, the more so the fewer examples are treated at a time (`slices`).
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
# A pooled convolution on a CPU: between at least so many channels Winograd's products are fastest,
MIN_WINOGRAD_CHANNELS = 16
# and the method "blocks" for at most so many output channels.
MAX_BLOCKS_CHANNELS = 12


def conv2d(
    x: Float[Array, "N H W C"],
    filters: Float[Array, "k l C O"],
    *,
    stride: int = 1,
    padding: str = "VALID",
    method: str = "auto",
) -> Float[Array, "N h w O"]:
    """Return the cross-correlation of images with filters.

    Args:
        x: Images (N, H, W, C).
        filters: Filters (k, l, C, O).
        stride: Stride in both directions.
        padding: "VALID" leaves ``(H - k) // stride + 1`` rows. "SAME" pads with zeros to
            ``ceil(H / stride)`` rows; an odd row of zeros goes below and an odd column to the
            right, as in TensorFlow and Flax. (PyTorch's padding=1 differs if the stride is 2 and
            the side even.)
        method: "direct" is XLA's own convolution. "patches" copies every k x l patch and takes one
            matrix product. "auto" is "patches" on a CPU and "direct" elsewhere.

    Returns:
        Outputs (N, h, w, O).

    Raises:
        ValueError: If padding or method is unknown, stride is not a positive integer, the filters
            are for another number of channels, or a filter does not fit into the image (VALID).
    """
    check_one_of("method", method, METHODS)
    check_positive_integer("stride", stride)
    _checked_output_size(x, filters, stride, padding)
    if method == "auto":
        method = "patches" if jax.default_backend() == "cpu" else "direct"
    dtype = jnp.result_type(x, filters)
    x, filters = x.astype(dtype), filters.astype(dtype)
    if method == "direct":
        return jax.lax.conv_general_dilated(
            x, filters, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    rows, columns = filters.shape[:2]
    pads = jax.lax.padtype_to_pads(x.shape[1:3], (rows, columns), (stride, stride), padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    # The barrier keeps the matrix of the filters transposed. Their derivative is then the product
    # U^T X with the patches X row by row, which is two to three times as fast on a CPU as X^T U.
    matrix = jax.lax.optimization_barrier(filters.reshape(-1, filters.shape[-1]).T)
    # In two turns, which take rows + columns copies of the image and not rows * columns.
    patches = _windows(_windows(x, 2, columns, stride), 1, rows, stride)
    return jax.lax.dot_general(patches, matrix, (((3,), (1,)), ((), ())))


def _windows(x, axis: int, size: int, stride: int):
    """Gather each window of `size` entries along an axis into the last axis."""
    last = x.shape[axis] - size
    shifts = [
        jax.lax.slice_in_dim(x, i, i + last + 1, stride=stride, axis=axis) for i in range(size)
    ]
    return shifts[0] if size == 1 else jnp.concatenate(shifts, axis=-1)


def _checked_output_size(x, filters, stride, padding) -> tuple[int, int]:
    """Return height and width after a convolution, or raise ValueError as `conv2d`."""
    check_one_of("padding", padding, PADDINGS)
    if x.shape[-1] != filters.shape[2]:
        raise ValueError(f"filters are for {filters.shape[2]} channels, images have {x.shape[-1]}")
    return output_size(x.shape[1:3], filters.shape[:2], stride, padding)


def output_size(
    image: tuple[int, ...], window: tuple[int, ...], stride: int = 1, padding: str = "VALID"
) -> tuple[int, int]:
    """Return height and width of the outputs of a convolution, or raise ValueError as `conv2d`."""
    (height, width), (rows, columns) = image, window
    if padding == "SAME":
        return -(-height // stride), -(-width // stride)
    if height < rows or width < columns:
        raise ValueError(
            f"a {rows} x {columns} filter does not fit into a {height} x {width} image"
        )
    return (height - rows) // stride + 1, (width - columns) // stride + 1


def max_pool2(x: Float[Array, "N H W C"]) -> Float[Array, "N h w C"]:
    """Return the maximum over 2 x 2 blocks with stride 2.

    Where k entries of a block tie, each gets 1/k of the derivative. The last row or column of an
    odd side is left out. Raises ValueError if the image is smaller than one block.
    """
    height, width = _pooled_size(x.shape[1:3])
    count, channels = len(x), x.shape[-1]
    blocks = x[:, : 2 * height, : 2 * width].reshape(count, height, 2, width, 2, channels)
    return _max_of_blocks(blocks)


def conv2d_max_pool2(
    x: Float[Array, "N H W C"],
    filters: Float[Array, "k l C O"],
    *,
    padding: str = "VALID",
    method: str = "auto",
) -> Float[Array, "N h w O"]:
    """Return `max_pool2` of `conv2d` with stride 1, in one pass if that is faster.

    Args:
        x: Images (N, H, W, C).
        filters: Filters (k, l, C, O).
        padding: "VALID" or "SAME", as in `conv2d`.
        method: "direct" and "patches" are those of `conv2d`. "blocks" makes the four outputs that
            are pooled together in one matrix product of patches k + 1 by l + 1, with the filters
            shifted to each corner. With 5 x 5 filters this takes 1.4 times the multiplications and
            a third of the copies. "winograd" makes them from short products
            (`winograd.corner_outputs`), for filters of 2 to 5 rows and columns. With 5 x 5 filters
            this takes 0.36 times the multiplications. In float32 its rounding errors are two to
            three times as large, and exact ties may be broken. "auto" chooses on a CPU and for
            several images: "winograd" between at least 16 channels C and O in float32 or wider,
            "blocks" for at most 12 channels O, and otherwise as `conv2d`. For a single image it
            chooses as `conv2d`, because `kernels` reads the layers from the program of a single
            image.

    Returns:
        Outputs (N, h, w, O).

    Raises:
        ValueError: As `conv2d` and `max_pool2`, and if a filter has not 2 to 5 rows and columns
            with "winograd".
    """
    check_one_of("method", method, POOLED_METHODS)
    if method == "auto" and len(x) > 1 and jax.default_backend() == "cpu":
        method = _fastest_on_cpu(filters.shape, jnp.result_type(x, filters))
    if method not in ("blocks", "winograd"):
        return max_pool2(conv2d(x, filters, padding=padding, method=method))
    _pooled_size(_checked_output_size(x, filters, 1, padding))
    pads = jax.lax.padtype_to_pads(x.shape[1:3], filters.shape[:2], (1, 1), padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    if method == "winograd":
        dtype = jnp.result_type(x, filters)
        return _max_of_corners(winograd.corner_outputs(x.astype(dtype), filters.astype(dtype)))
    corners = [
        jnp.pad(filters, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0)))
        for i, j in product((0, 1), (0, 1))
    ]
    outputs = conv2d(x, jnp.concatenate(corners, axis=-1), stride=2, method="patches")
    return _max_of_corners(outputs.reshape(*outputs.shape[:3], 4, -1))


def _fastest_on_cpu(shape: tuple[int, ...], dtype) -> str:
    """Return the fastest method for filters of this shape that is accurate in this type."""
    *size, inputs, outputs = shape
    wide = min(inputs, outputs) >= MIN_WINOGRAD_CHANNELS
    accurate = jnp.finfo(dtype).bits >= 32
    shortest, longest = winograd.MIN_FILTER_SIZE, winograd.MAX_FILTER_SIZE
    if wide and accurate and all(shortest <= side <= longest for side in size):
        return "winograd"
    return "blocks" if outputs <= MAX_BLOCKS_CHANNELS else "patches"


def _pooled_size(image: tuple[int, ...]) -> tuple[int, int]:
    """Return height and width after `max_pool2`, or raise ValueError if there is no block."""
    height, width = image
    if min(height, width) < 2:
        raise ValueError(f"an image of {height} x {width} is too small for 2 x 2 pooling")
    return height // 2, width // 2


def _max_over(axes: tuple[int, ...]) -> Callable[[Array], Array]:
    """Return the maximum over axes, with a derivative that is fast on CPUs.

    The derivative is that of JAX. JAX counts ties by a sum over the block, which XLA runs as a pass
    of its own that writes three arrays of the size of the input; here they are counted entry by
    entry.
    """

    @jax.custom_jvp
    def maximum(blocks):
        return blocks.max(axes)

    @maximum.defjvp
    def maximum_jvp(primals, tangents):
        (blocks,), (direction,) = primals, tangents

        def at(*indices):
            index = dict(zip(axes, indices, strict=True))
            return tuple(index.get(axis, slice(None)) for axis in range(blocks.ndim))

        # Without the barrier XLA may compute the blocks twice, with different rounding. Then no
        # entry would equal the maximum.
        blocks = jax.lax.optimization_barrier(blocks)
        largest = maximum(blocks)
        hit = blocks == largest[at(*[None] * len(axes))]
        entries = product(*(range(blocks.shape[axis]) for axis in axes))
        ties = sum(hit[at(*entry)].astype(blocks.dtype) for entry in entries)
        return largest, jnp.where(hit, direction, 0).sum(axes) / ties

    return maximum


_max_of_blocks = _max_over((2, 4))  # of (N, h, 2, w, 2, C)
_max_of_corners = _max_over((3,))  # of (N, h, w, 4, C)
