"""The empirical kernel layer by layer: what a group of examples contributes, and products of it.

A dense layer with inputs a and cotangents g adds (a_i . a_j) (g_io . g_jq) to the kernel, where the
Jacobian's rows would take d_in d_out numbers each. A layer with several positions in an example, as
in a convolution, takes the cheaper of its rows and of products of positions, and so does a lookup
in a table, whose positions have a product where they take the same row. All else takes rows.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Integer, PyTree, Shaped

from iterlin.kernels.layers import find_layers
from iterlin.kernels.lookups import Lookup, find_lookups, find_parts
from iterlin.linearise import examples
from iterlin.linearise.parameters import combine
from iterlin.linearise.programs import Program, eval_program, jit_cached, trace_program

PAIRWISE = ("full", "matrix")  # all pairs of outputs; the others pair each output with itself
PRODUCT = "product"  # no pairs: factors that are kept, for products with J J^T
# A number read from memory takes as long as about so many multiplications.
READ = 10

# Bytes of activations and cotangents alive in the backward passes, for as many examples at a time
# as that allows: about a processor's cache.
WORKSPACE = 2**25


class Factors(NamedTuple):
    """Contributions of N examples and o outputs to the kernel, leading with N.

    dense: (inputs (N, D), cotangents (N, o, E)). positions: (inputs (N, S, D), cotangents
    (N, S, o, E)). rows: rows of the Jacobian, (N, o, P). lookups: (which row of a table (N, S) each
    position takes, cotangents (N, S, o, E)).
    """

    dense: list[tuple[Array, Array]]
    positions: list[tuple[Array, Array]]
    rows: list[Array]
    lookups: Sequence[tuple[Array, Array]] = ()


def compute_factors(
    program: Program,
    moving: list[Array],
    fixed: list[Array],
    x: PyTree[Shaped[Array, "N ..."]],
    outputs: Integer[Array, " o"],
    *,
    form: str,
    count: int,
    total: int,
) -> Factors:
    """Factors of the examples x for some outputs, given by their numbers.

    The program takes leaves of parameters, `moving` (with respect to which J is) before `fixed`
    ones, and a batch of one example. count: with how many examples each will be paired, and total:
    how many outputs there are in all, for the choice between rows and positions, which must be the
    same for every part of them.
    """
    choice = partial(_positions_are_cheaper, outputs=total, form=form, count=count)
    layers = find_layers(program, len(moving))
    lookups = [
        lookup
        for lookup in find_lookups(program, len(moving))
        if _lookup_is_cheaper(lookup, outputs=total, form=form)
    ]
    given = [*moving, *fixed]
    one = partial(_example_factors, program, layers, lookups, given, len(moving), outputs, choice)
    batch_size = min(examples.num_examples(x), _slice_size(program, len(outputs)))
    return jax.lax.map(one, x, batch_size=batch_size)


class TracedNetwork(NamedTuple):
    """A network traced for a batch of one example, and the parameters that it takes."""

    program: Program
    moving: list[Array]
    fixed: list[Array]

    @property
    def result(self) -> Any:
        """Shape and type of its outputs."""
        return self.program.types[self.program.result]

    def factors(self, x: PyTree, outputs: Array | np.ndarray, **settings) -> Factors:
        """`compute_factors`, compiled once for equal programs."""
        call = jit_cached(compute_factors, self.program, static_argnames=("form", "count", "total"))
        return call(self.moving, self.fixed, x, outputs, **settings)

    def shapes(self, x: PyTree, outputs: Array | np.ndarray, **settings) -> Factors:
        """Shapes and types of the factors, without computing them."""
        return jax.eval_shape(lambda x, outputs: self.factors(x, outputs, **settings), x, outputs)


def trace_network(f: Callable, moving: PyTree, fixed: PyTree, x: PyTree) -> TracedNetwork:
    """f for a batch like x, with the parameters that `parameters.partition` has made."""
    program = trace_program(lambda *given: f(combine(*given[:2]), given[2]), moving, fixed, x)
    return TracedNetwork(program, jax.tree.leaves(moving), jax.tree.leaves(fixed))


def _slice_size(program: Program, outputs: int) -> int:
    """Examples whose values and cotangents fit into the workspace."""
    size = sum(
        math.prod(program.types[i].shape)
        for operation in program.operations
        for i in operation.outputs
    )
    return max(1, WORKSPACE // max(1, 4 * size * (1 + outputs)))


def _example_factors(
    program, layers, lookups, given, moving, outputs, are_cheaper, example
) -> Factors:
    """Factors of one example, from one backward pass for each output."""
    taken = {i for layer in layers for i in (layer.weight, layer.bias)}
    taken |= {lookup.table for lookup in lookups}
    users = program.users()
    others = [i for i in range(moving) if i not in taken and users[program.arguments[i]]]
    parts = find_parts(program, others)
    shifted = [entry.output for entry in [*layers, *lookups]] + list(parts.values())
    types = {number: program.types[number] for number in shifted}
    zeros = {number: jnp.zeros(t.shape, t.dtype) for number, t in types.items()}
    wholes = {i: given[i] for i in others if i not in parts}
    example = jax.tree.leaves(examples.add_batch_axis(example))

    def moved(shifts, wholes):
        leaves = [wholes.get(i, leaf) for i, leaf in enumerate(given)]
        result, values = eval_program(program, [*leaves, *example], shifts)
        return result, {entry.operand: values[entry.operand] for entry in [*layers, *lookups]}

    result, pull, operands = jax.vjp(moved, zeros, wholes, has_aux=True)
    basis = jax.nn.one_hot(outputs, result.size, dtype=result.dtype)
    cotangents, gradients = jax.vmap(pull)(basis.reshape(-1, *result.shape))
    dtype = jnp.result_type(*given[:moving])
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
    found = [*gradients.values(), *(cotangents[number] for number in parts.values())]
    if found:
        leaves = [leaf.reshape(len(outputs), -1).astype(dtype) for leaf in found]
        rows.append(jnp.concatenate(leaves, axis=1))
    looked_up = []
    for lookup in lookups:
        taken, g = lookup.factors(operands[lookup.operand], cotangents[lookup.output])
        looked_up.append((taken, g.astype(dtype).swapaxes(0, 1)))
    return Factors(dense, positions, rows, looked_up)


def _positions_are_cheaper(positions, inputs, features, *, outputs, form, count) -> bool:
    """By multiplications for each pair of examples; rows are formed once for `count` pairs. For
    products, by those of J^T v and by the numbers to be read."""
    if form == PRODUCT:
        kept = positions * (inputs + outputs * features)
        return positions * inputs * features + READ * kept < READ * outputs * inputs * features
    pairs = outputs**2 if form in PAIRWISE else outputs
    size = inputs * features
    by_rows = pairs * size + 2 * outputs * positions * size / count
    gram = positions**2 * (inputs + outputs * features)
    return gram + pairs * positions * features < by_rows


def _lookup_is_cheaper(lookup: Lookup, *, outputs, form) -> bool:
    """By multiplications for each pair of examples, and numbers kept of each of them."""
    pairs = outputs**2 if form in PAIRWISE else outputs
    s, rows = lookup.positions, lookup.rows
    if form == PRODUCT:
        return s < rows
    return s < rows and s**2 * outputs + pairs * s < pairs * rows


def multiply_factors(first: Factors, second: Factors, form: str) -> Array:
    """Kernel between two groups: (N1, o1, N2, o2) if pairwise, or (N1, N2, o) or (N1, N2)."""
    outer = (
        "io,jq->iojq" if form in PAIRWISE else "io,jo->ijo" if form == "diagonal" else "io,jo->ij"
    )
    left, right, result = _split(outer)
    total = 0.0
    for (a, g), (b, h) in zip(first.dense, second.dense, strict=True):
        gram = a @ b.T
        gram = gram.reshape(_aligned(gram.shape, form))
        total = total + gram * jnp.einsum(f"{left}e,{right}e->{result}", g, h)
    for rows1, rows2 in zip(first.rows, second.rows, strict=True):
        total = total + _rows_product(rows1, rows2, form)
    if first.positions or first.lookups:
        total = total + _positions_product(first, second, form)
    return jnp.asarray(total)


def _rows_product(first, second, form: str) -> Array:
    """One output at a time unless all are paired: the rows of all would be copied to be summed."""
    if form in PAIRWISE:
        return jnp.einsum("iop,jqp->iojq", first, second)

    def of_output(index):
        rows = (jax.lax.dynamic_index_in_dim(a, index, 1, keepdims=False) for a in (first, second))
        return jnp.einsum("ip,jp->ij", *rows)

    outputs = jnp.arange(first.shape[1])
    if form == "diagonal":
        return jnp.moveaxis(jax.lax.map(of_output, outputs), 0, 2)
    zero = jnp.zeros((len(first), len(second)), jnp.result_type(first, second))
    return jax.lax.scan(lambda sum_, index: (sum_ + of_output(index), None), zero, outputs)[0]


def _positions_product(first, second, form: str) -> Array:
    """One example of the second group at a time: first between positions, then with features."""
    ones = [*first.positions, *first.lookups]

    def column(others):
        return sum(
            _among_positions(_gram(a, b, g.dtype), g, h, form)
            for (a, g), (b, h) in zip(ones, others, strict=True)
        )

    columns = jax.lax.map(column, [*second.positions, *second.lookups])
    return jnp.moveaxis(columns, 0, 2 if form in PAIRWISE else 1)


def _gram(a, b, dtype) -> Array:
    """Products of the inputs of positions (I, S) and (T,); for rows of a table, are they equal?"""
    if b.ndim == 2:
        return jnp.einsum("isd,td->ist", a, b)
    return (a[:, :, None] == b[None, None, :]).astype(dtype)


def _among_positions(gram, g, h, form: str) -> Array:
    """The sum over positions of gram (I, S, T) times products of cotangents of all features.

    (I, o, q) if pairwise, or (I, o) or (I,); g is (I, S, o, E) and h (T, q, E).
    """
    if form == "trace":
        g, h = g.reshape(*g.shape[:2], -1), h.reshape(len(h), -1)
        return jnp.einsum("ist,ist->i", gram, jnp.einsum("isf,tf->ist", g, h))
    seen = jnp.einsum("ist,tqe->isqe", gram, h)
    return jnp.einsum("isoe,isqe->ioq" if form in PAIRWISE else "isoe,isoe->io", g, seen)


def _split(outer: str) -> tuple[str, str, str]:
    operands, result = outer.split("->")
    left, right = operands.split(",")
    return left, right, result


def _aligned(shape, form: str) -> tuple[int, ...]:
    """(N1, N2) as it multiplies the product of that form."""
    n1, n2 = shape
    return {"diagonal": (n1, n2, 1), "trace": (n1, n2)}.get(form, (n1, 1, n2, 1))
