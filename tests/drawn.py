"""What Hypothesis draws: a handful of shapes in `make test`, every shape in `make nightly`.

A program compiles once for each shape; values are drawn by a seed, and cost nothing.
"""

from hypothesis import settings
from hypothesis import strategies as st

NIGHTLY = settings.get_current_profile_name() == "nightly"


def shapes(few, *sizes):
    """One of a few tuples; nightly a tuple of a size each, from 1 to the given number.

    Or from the first of two numbers to the second; or what else a strategy draws.
    """

    def size(given):
        given = (1, given) if isinstance(given, int) else given
        return st.integers(*given) if isinstance(given, tuple) else given

    return st.tuples(*map(size, sizes)) if NIGHTLY else st.sampled_from(few)


def at_most(count):
    """Decorates a test that `make test` gives fewer examples than others; nightly as many."""
    return settings() if NIGHTLY else settings(max_examples=count)
