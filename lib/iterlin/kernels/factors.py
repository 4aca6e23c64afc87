"""The empirical kernel layer by layer: what a group of examples contributes, and products of it.

A dense layer with inputs a and cotangents g adds (a_i . a_j) (g_io . g_jq) to the kernel, where the
Jacobian's rows would take d_in d_out numbers each. A layer with several positions in an example, as
in a convolution, takes the cheaper of its rows and of products of positions; all else takes rows.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

from iterlin.kernels.flat_program import Program, flatten, run
from iterlin.kernels.layers import find_layers
from iterlin.linearization import Network

PAIRWISE = ("full", "matrix")  # all pairs of outputs; the others pair each output with itself

# Bytes of activations and cotangents alive in the backward passes, for as many examples at a time
# as that allows: about a processor's cache.
WORKSPACE = 2**25


class Factors(NamedTuple):
    """Contributions of N examples and o outputs to the kernel, leading with N.

    dense: (inputs (N, D), cotangents (N, o, E)). positions: (inputs (N, S, D), cotangents
    (N, o, S, E)). rows: rows of the Jacobian, (N, o, P).
    """

    dense: list[tuple[Array, Array]]
    positions: list[tuple[Array, Array]]
    rows: list[Array]


@partial(jax.jit, static_argnums=0, static_argnames=("form", "count", "total"))
def factors(
    f: Network,
    params: PyTree,
    x: Shaped[Array, "N ..."],
    outputs: Float[Array, "o O"],
    *,
    form: str,
    count: int,
    total: int,
) -> Factors:
    """Factors of the examples x for some outputs, given as rows of the identity.

    count: with how many examples each will be paired, and total: how many outputs there are in all,
    for the choice between rows and positions, which must be the same for every part of them.
    """
    leaves, tree = jax.tree.flatten(params)

    def single(leaves, example):
        return f(jax.tree.unflatten(tree, leaves), example[None])[0]

    program = flatten(single, leaves, jax.ShapeDtypeStruct(x.shape[1:], x.dtype))
    layers = find_layers(program, len(leaves))
    one = partial(
        _example_factors, program, layers, leaves, outputs, form=form, count=count, total=total
    )
    return jax.lax.map(one, x, batch_size=min(len(x), _slice_size(program, len(outputs))))


def _slice_size(program: Program, outputs: int) -> int:
    """Examples whose values and cotangents fit into the workspace."""
    size = sum(
        math.prod(program.types[i].shape)
        for operation in program.operations
        for i in operation.outputs
    )
    return max(1, WORKSPACE // (4 * size * (1 + outputs)))


def _example_factors(program, layers, leaves, outputs, example, *, form, count, total) -> Factors:
    """Factors of one example, from one backward pass for each output."""
    taken = {i for layer in layers for i in (layer.weight, layer.bias)}
    others = {
        i: leaf
        for i, leaf in enumerate(leaves)
        if i not in taken and jnp.issubdtype(leaf.dtype, jnp.inexact)
    }
    types = {layer.output: program.types[layer.output] for layer in layers}
    zeros = {number: jnp.zeros(t.shape, t.dtype) for number, t in types.items()}

    def moved(shifts, others):
        given = [others.get(i, leaf) for i, leaf in enumerate(leaves)]
        result, values = run(program, [*given, example], shifts)
        return result, {layer.operand: values[layer.operand] for layer in layers}

    _, pull, operands = jax.vjp(moved, zeros, others, has_aux=True)
    cotangents, gradients = jax.vmap(pull)(outputs)
    dtype = jnp.result_type(*leaves)
    found = Factors([], [], [])
    for layer in layers:
        a = layer.inputs(operands).astype(dtype)
        g = layer.cotangents(cotangents[layer.output]).astype(dtype)
        if len(a) == 1:
            found.dense.append((a[0], g[:, 0]))
        elif _positions_are_cheaper(*a.shape, total, g.shape[2], form=form, count=count):
            found.positions.append((a, g))
        else:
            found.rows.append(jnp.einsum("ose,sd->oed", g, a).reshape(len(g), -1))
    if gradients:
        rows = [leaf.reshape(len(outputs), -1).astype(dtype) for leaf in gradients.values()]
        found.rows.append(jnp.concatenate(rows, axis=1))
    return found


def _positions_are_cheaper(positions, inputs, outputs, features, *, form, count) -> bool:
    """By multiplications for each pair of examples; rows are formed once for `count` pairs."""
    pairs = outputs**2 if form in PAIRWISE else outputs
    size = inputs * features
    by_rows = pairs * size + 2 * outputs * positions * size / count
    gram = positions**2 * (inputs + outputs * features)
    return gram + pairs * positions * features < by_rows


def product(first: Factors, second: Factors, form: str) -> Array:
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
    for one, other in zip(first.positions, second.positions, strict=True):
        total = total + _positions_product(one, other, left, right[1:], result)
    return total


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


def _positions_product(first, second, left, right, result) -> Array:
    """One example of the second group at a time: between positions first, then with features."""
    a, g = first

    def column(example):
        b, h = example
        gram = jnp.einsum("isd,td->ist", a, b)
        seen = jnp.einsum(f"ist,{right}te->is{right}e", gram, h)
        return jnp.einsum(f"{left}se,is{right}e->{result.replace('j', '')}", g, seen)

    columns = jax.lax.map(column, second)
    return jnp.moveaxis(columns, 0, result.index("j"))


def _split(outer: str) -> tuple[str, str, str]:
    operands, result = outer.split("->")
    left, right = operands.split(",")
    return left, right, result


def _aligned(shape, form: str) -> tuple[int, ...]:
    """(N1, N2) as it multiplies the product of that form."""
    n1, n2 = shape
    return {"diagonal": (n1, n2, 1), "trace": (n1, n2)}.get(form, (n1, 1, n2, 1))
