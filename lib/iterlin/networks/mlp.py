"""Multilayer perceptrons, and the pair of functions (init, apply) that describes a network."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.linearise.validation import (
    check_bools,
    check_non_negative,
    check_one_of,
    check_positive_integers,
)

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh, "identity": lambda h: h}


class Model(NamedTuple):
    """A network as a pair of pure functions.

    Attributes:
        init: Function from a PRNG key to parameters, a pytree.
        apply: Function from (params, x) to outputs (N, ...), for inputs x of N examples.
    """

    init: Callable[[Array], PyTree]
    apply: Callable[[PyTree, Array], Array]


def mlp(
    widths: Sequence[int],
    *,
    activation: Literal["relu", "tanh", "identity"] = "relu",
    parameterization: Literal["standard", "ntk"] = "standard",
    weight_scale: float | None = None,
    bias_scale: float = 0.0,
    output_bias: bool = True,
) -> Model:
    """Return a multilayer perceptron.

    In the standard parameterization a layer is h -> h W + b. In the NTK parameterization it is
    h -> h W / sqrt(fan_in) + b with weights of variance 1. Both are the same function at
    initialisation, but with the latter the tangent kernel stays finite at infinite width, and so do
    the learning rates (Jacot, Gabriel & Hongler 2018).

    Args:
        widths: Layer sizes (inputs, hidden..., outputs).
        activation: "relu", "tanh" or "identity", applied to every hidden layer.
        parameterization: "standard" draws weights from N(0, 1/fan_in) (LeCun normal), "ntk" from
            N(0, 1).
        weight_scale: Standard deviation of the weights in place of 1/sqrt(fan_in); only in the
            standard parameterization.
        bias_scale: Standard deviation of the biases.
        output_bias: Whether the last layer has a bias.

    Returns:
        A `Model`. Its parameters are a list with one dict {"weight": (fan_in, fan_out),
        "bias": (fan_out,)} for each layer, and its outputs have shape (N, widths[-1]).

    Raises:
        ValueError: If activation or parameterization is unknown, widths are not at least two
            positive integers, a scale is negative or not finite, weight_scale is given in the NTK
            parameterization, or output_bias is not a bool.

    >>> net = il.mlp((2, 16, 1), activation="tanh", parameterization="ntk")
    >>> params = net.init(jax.random.key(0))
    >>> params[0]["weight"].shape, net.apply(params, jnp.ones((5, 2))).shape
    ((2, 16), (5, 1))
    """
    check_one_of("activation", activation, ACTIVATIONS)
    check_one_of("parameterization", parameterization, ("standard", "ntk"))
    check_positive_integers("widths", widths)
    if len(widths) < 2:
        raise ValueError(f"widths must hold at least inputs and outputs, got {tuple(widths)}")
    check_non_negative("bias_scale", bias_scale)
    check_bools(output_bias=output_bias)
    if weight_scale is not None:
        check_non_negative("weight_scale", weight_scale)
        if parameterization == "ntk":
            raise ValueError(
                "weight_scale has no meaning in the ntk parameterization: leave it out"
            )
    act = ACTIVATIONS[activation]
    shapes = list(pairwise(widths))

    def init(key):
        layers = []
        for index, (fan_in, fan_out) in enumerate(shapes):
            weight_key, bias_key = jax.random.split(jax.random.fold_in(key, index))
            scale = 1 / math.sqrt(fan_in) if weight_scale is None else weight_scale
            scale = 1.0 if parameterization == "ntk" else scale
            layer = {"weight": scale * jax.random.normal(weight_key, (fan_in, fan_out))}
            if output_bias or index < len(shapes) - 1:
                layer["bias"] = bias_scale * jax.random.normal(bias_key, (fan_out,))
            layers.append(layer)
        return layers

    def apply(params, x: Float[Array, "N D"]) -> Float[Array, "N O"]:
        h = x
        for index, layer in enumerate(params):
            h = act(h) if index else h
            fan_in = layer["weight"].shape[0]
            h = h @ layer["weight"] / (math.sqrt(fan_in) if parameterization == "ntk" else 1)
            h = h + layer["bias"][None, :] if "bias" in layer else h
        return h

    return Model(init, apply)
