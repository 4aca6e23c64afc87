"""A flattened function computes what it did, by its own derivative rules, and can be shifted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.linearise.programs import eval_program, trace_program

VECTOR = jnp.asarray([-1.5, 0.0, 2.0])


def nested(x):
    inner = jax.jit(lambda v: jax.jit(jnp.tanh)(2 * v) + VECTOR)
    return inner(inner(x)) * inner(x)


def looped(x):
    carry, outputs = jax.lax.scan(lambda c, v: (c + v, c * v), x.sum(), x)
    return jax.lax.cond(carry > 0, lambda: outputs, lambda: carry * outputs)


FUNCTIONS = {
    "nested calls": nested,
    "derivative rule": lambda x: jax.nn.relu(x) - jax.nn.softplus(x),
    "control flow": looped,
    "argument itself": lambda x: x,
    "constant": lambda x: VECTOR,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_value_and_derivative_are_those_of_the_function(name):
    """At 0, where relu's own rule (0) and that of the maximum in it (1/2) differ, too."""
    function = FUNCTIONS[name]
    program = trace_program(function, VECTOR)

    def again(x):
        return eval_program(program, [x], {})[0]

    np.testing.assert_array_equal(again(VECTOR), function(VECTOR))
    np.testing.assert_allclose(jax.jacrev(again)(VECTOR), jax.jacrev(function)(VECTOR), atol=1e-15)


def test_shift_moves_one_value_and_all_that_follow_from_it():
    program = trace_program(lambda x: jnp.exp(jnp.sin(x)), VECTOR)
    sine = program.operations[0].outputs[0]
    result, values = eval_program(program, [VECTOR], {sine: VECTOR})
    np.testing.assert_allclose(values[sine], jnp.sin(VECTOR) + VECTOR, rtol=1e-15)
    np.testing.assert_allclose(result, jnp.exp(jnp.sin(VECTOR) + VECTOR), rtol=1e-15)


def test_unused_operations_are_left_out_but_effects_stay():
    def function(x):
        jnp.tanh(jnp.exp(x))
        return jnp.sin(x)

    assert [operation.name for operation in trace_program(function, VECTOR).operations] == ["sin"]
    program = trace_program(lambda x: jax.debug.callback(print, jnp.exp(x)) or jnp.sin(x), VECTOR)
    assert [operation.name for operation in program.operations] == ["exp", "debug_callback", "sin"]
