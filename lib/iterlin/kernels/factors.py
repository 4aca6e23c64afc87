"""Factors of the empirical kernel: what each layer contributes for a group of examples.

A dense layer with inputs a and cotangents g adds (a_i . a_j) (g_io . g_jq) to the kernel. Its rows
of the Jacobian would have d_in d_out entries each. For a layer with several positions in an
example, such as a convolution or a lookup in a table, the cheaper of rows and of products between
positions is taken. All other parameters contribute rows.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Integer, PyTree, Shaped

from iterlin.kernels.layers import find_layers
from iterlin.kernels.lookups import Lookup, find_lookups, find_sliced
from iterlin.linearise import examples
from iterlin.linearise.compiled import jit_cached
from iterlin.linearise.programs import Program, eval_program

PAIRWISE = ("full", "matrix")  # forms with all pairs of outputs; others pair an output with itself
PRODUCT = "product"  # factors for products with J J^T, which pair no examples
READ = 10  # multiplications that take as long as reading a number from memory
SLOWER = 4  # how many times as long a multiplication takes in `_positions_product` as in a matrix

# Bytes of activations and cotangents alive in the backward passes, about the cache of a processor.
# It limits the number of examples that are treated at a time.
WORKSPACE = 2**25


class Factors(NamedTuple):
    """Factors of the kernel for N examples and o outputs, a list entry for each layer.

    Attributes:
        dense: Inputs (N, D) and cotangents (N, o, E) of layers with one position.
        positions: Inputs (N, S, D) and cotangents (N, S, o, E) of layers with S positions.
        rows: Rows of the Jacobian (N, o, P).
        lookups: The row of a table that each position takes (N, S), and cotangents (N, S, o, E).
    """

    dense: list[tuple[Array, Array]]
    positions: list[tuple[Array, Array]]
    rows: list[Array]
    lookups: Sequence[tuple[Array, Array]] = ()


def compute_factors(
    program: Program,
    leaves: list[Array],
    x: PyTree[Shaped[Array, "N ..."]],
    outputs: Integer[Array, " o"],
    *,
    form: str,
    count: int,
) -> Factors:
    """Compute the factors of the examples x for some of the outputs.

    The arguments of the program are the leaves of the parameters and a batch of one example. The
    form of the kernel is in `PAIRWISE`, "diagonal", "trace" or `PRODUCT`. The choice between rows
    and positions depends on `count`, the number of examples that each is paired with, and on the
    number of all outputs of an example, but not on the outputs given: it is the same in each chunk
    of the outputs.
    """
    total = math.prod(program.types[program.result].shape)
    choice = partial(_positions_are_cheaper, outputs=total, form=form, count=count)
    layers = find_layers(program, len(leaves))
    lookups = [
        lookup
        for lookup in find_lookups(program, len(leaves))
        if _lookup_is_cheaper(lookup, outputs=total, form=form)
    ]
    one = partial(_example_factors, program, layers, lookups, leaves, outputs, choice)
    batch_size = min(examples.num_examples(x), _slice_size(program, len(outputs)))
    return jax.lax.map(one, x, batch_size=batch_size)


class TracedNetwork(NamedTuple):
    """A network traced for a batch of one example, with its parameters.

    Attributes:
        program: The network.
        leaves: The leaves of its parameters.
    """

    program: Program
    leaves: list[Array]

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the outputs of an example."""
        return self.program.types[self.program.result].shape[1:]

    @property
    def num_outputs(self) -> int:
        """The number of outputs of an example."""
        return math.prod(self.out)

    @property
    def dtype(self) -> Any:
        """The type of the kernel and of its factors."""
        return jnp.result_type(*self.leaves)

    def factors(self, x: PyTree, outputs: Array | np.ndarray, *, form: str, count: int) -> Factors:
        """Call `compute_factors`, which is compiled once for equal programs."""
        call = jit_cached(compute_factors, self.program, static_argnames=("form", "count"))
        return call(self.leaves, x, outputs, form=form, count=count)

    def factor_bytes(self, x: PyTree, outputs: int, **settings) -> int:
        """Return the size, in bytes, of an example's factors for a number of outputs."""
        one = examples.batch_shapes(x, 1)
        shapes = jax.eval_shape(partial(self.factors, **settings), one, np.arange(outputs))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def _slice_size(program: Program, outputs: int) -> int:
    """Return the number of examples whose values and cotangents fit into the workspace."""
    size = sum(
        math.prod(program.types[i].shape)
        for operation in program.operations
        for i in operation.outputs
    )
    return max(1, WORKSPACE // max(1, 4 * size * (1 + outputs)))


def _example_factors(program, layers, lookups, leaves, outputs, are_cheaper, example) -> Factors:
    """Compute the factors of one example, by one backward pass for each output.

    The cotangent of a value is the derivative with respect to a shift of it by zero.
    """
    covered = {i for layer in layers for i in (layer.weight, layer.bias)}
    covered |= {lookup.table for lookup in lookups}
    users = program.users()
    others = [i for i in range(len(leaves)) if i not in covered and users[program.arguments[i]]]
    sliced = find_sliced(program, others)
    shifted = [entry.output for entry in [*layers, *lookups]] + list(sliced.values())
    types = {number: program.types[number] for number in shifted}
    zeros = {number: jnp.zeros(t.shape, t.dtype) for number, t in types.items()}
    unsliced = {i: leaves[i] for i in others if i not in sliced}
    example = jax.tree.leaves(examples.add_batch_axis(example))

    def evaluate(shifts, unsliced):
        replaced = [unsliced.get(i, leaf) for i, leaf in enumerate(leaves)]
        result, values = eval_program(program, [*replaced, *example], shifts)
        return result, {entry.operand: values[entry.operand] for entry in [*layers, *lookups]}

    result, vjp, operands = jax.vjp(evaluate, zeros, unsliced, has_aux=True)
    basis = jax.nn.one_hot(outputs, result.size, dtype=result.dtype)
    cotangents, gradients = jax.vmap(vjp)(basis.reshape(-1, *result.shape))
    dtype = jnp.result_type(*leaves)
    dense, positions, rows = [], [], []
    for layer in layers:
        a = layer.inputs(operands).astype(dtype)
        g = layer.cotangents(cotangents[layer.output]).astype(dtype)
        if len(a) == 1:
            dense.append((a[0], g[:, 0]))
        elif are_cheaper(*a.shape, g.shape[2]):
            positions.append((a, g.swapaxes(0, 1)))
        else:
            rows.append(jnp.einsum("ose,sd->oed", g, a).reshape(len(g), -1))
    remaining = [*gradients.values(), *(cotangents[number] for number in sliced.values())]
    remaining = [leaf for leaf in remaining if leaf.size]
    if remaining:
        columns = [leaf.reshape(len(outputs), -1).astype(dtype) for leaf in remaining]
        rows.append(jnp.concatenate(columns, axis=1))
    looked_up = []
    for lookup in lookups:
        indices, g = lookup.factors(operands[lookup.operand], cotangents[lookup.output])
        looked_up.append((indices, g.astype(dtype).swapaxes(0, 1)))
    return Factors(dense, positions, rows, looked_up)


def _positions_are_cheaper(positions, inputs, features, *, outputs, form, count) -> bool:
    """Return whether products between positions cost less than rows, for one layer.

    The cost is the multiplications for each pair of examples, where rows are formed once for
    `count` pairs. For `PRODUCT` it is the multiplications of J^T v and the numbers to read.
    """
    if form == PRODUCT:
        cached = positions * (inputs + outputs * features)
        return positions * inputs * features + READ * cached < READ * outputs * inputs * features
    pairs = outputs**2 if form in PAIRWISE else outputs
    size = inputs * features
    by_rows = pairs * size + 2 * outputs * positions * size / count
    gram = positions**2 * (inputs + outputs * features)
    return SLOWER * (gram + pairs * positions * features) < by_rows


def _lookup_is_cheaper(lookup: Lookup, *, outputs, form) -> bool:
    """Return whether products between positions of a lookup cost less than rows.

    The cost is the multiplications for each pair of examples, or for `PRODUCT` the numbers cached.
    """
    pairs = outputs**2 if form in PAIRWISE else outputs
    s, rows = lookup.positions, lookup.rows
    if form == PRODUCT:
        return s < rows
    return s < rows and s**2 * outputs + pairs * s < pairs * rows


def multiply_factors(first: Factors, second: Factors, form: str) -> Array:
    """Compute the kernel between two groups of N1 and N2 examples from their factors.

    Returns (N1, o1, N2, o2) if the form is in `PAIRWISE`; (N1, N2, o) for "diagonal"; (N1, N2) for
    "trace"; the number 0 if there are no factors.
    """
    total = 0.0
    for (a, g), (b, h) in zip(first.dense, second.dense, strict=True):
        gram = a @ b.T
        if form in PAIRWISE:
            total = total + gram[:, None, :, None] * _of_all_pairs(g, h)
        elif form == "diagonal":
            total = total + gram[..., None] * jnp.einsum("ioe,joe->ijo", g, h)
        else:
            total = total + gram * jnp.einsum("ioe,joe->ij", g, h)
    for rows1, rows2 in zip(first.rows, second.rows, strict=True):
        total = total + _rows_product(rows1, rows2, form)
    if first.positions or first.lookups:
        total = total + _positions_product(first, second, form)
    return jnp.asarray(total)


def _rows_product(first, second, form: str) -> Array:
    """Multiply rows of J, one output at a time unless all are paired.

    A sum over outputs in one einsum would copy the rows of all of them.
    """
    if form in PAIRWISE:
        return _of_all_pairs(first, second)

    def of_output(index):
        rows = (jax.lax.dynamic_index_in_dim(a, index, 1, keepdims=False) for a in (first, second))
        return jnp.einsum("ip,jp->ij", *rows)

    outputs = jnp.arange(first.shape[1])
    if form == "diagonal":
        return jnp.moveaxis(jax.lax.map(of_output, outputs), 0, 2)
    zero = jnp.zeros((len(first), len(second)), jnp.result_type(first, second))
    return jax.lax.scan(lambda sum_, index: (sum_ + of_output(index), None), zero, outputs)[0]


def _of_all_pairs(first, second) -> Array:
    """Multiply vectors (N1, o1, E) and (N2, o2, E) for all pairs: (N1, o1, N2, o2).

    As matrices, since XLA copies arrays of more axes into another layout before it multiplies.
    """
    left, right = (vectors.reshape(-1, vectors.shape[-1]) for vectors in (first, second))
    product = left @ right.T
    return product.reshape(*first.shape[:2], *second.shape[:2])


def _positions_product(first, second, form: str) -> Array:
    """Multiply factors of positions and lookups, one example of the second group at a time."""
    ones = [*first.positions, *first.lookups]

    def column(others):
        return sum(
            _among_positions(_gram(a, b, g.dtype), g, h, form)
            for (a, g), (b, h) in zip(ones, others, strict=True)
        )

    columns = jax.lax.map(column, [*second.positions, *second.lookups])
    return jnp.moveaxis(columns, 0, 2 if form in PAIRWISE else 1)


def _gram(a, b, dtype) -> Array:
    """Return inner products of the inputs of positions (I, S, T), or for lookups whether the rows
    are equal."""
    if b.ndim == 2:
        return jnp.einsum("isd,td->ist", a, b)
    return (a[:, :, None] == b[None, None, :]).astype(dtype)


def _among_positions(gram, g, h, form: str) -> Array:
    """Sum gram (I, S, T) times products of the cotangents g (I, S, o, E) and h (T, q, E).

    The sum is over positions and features. Returns (I, o, q) if pairwise, else (I, o) or (I,).
    """
    if form == "trace":
        g, h = g.reshape(*g.shape[:2], -1), h.reshape(len(h), -1)
        return jnp.einsum("ist,ist->i", gram, jnp.einsum("isf,tf->ist", g, h))
    seen = jnp.einsum("ist,tqe->isqe", gram, h)
    return jnp.einsum("isoe,isqe->ioq" if form in PAIRWISE else "isoe,isoe->io", g, seen)
