"""Calls with a mistake are refused in one line."""

import pytest


def fails(message, call, *arguments, error=ValueError, **settings):
    """Require that the call is refused in one line, in which the pattern is found."""
    with pytest.raises(error, match=message) as raised:
        call(*arguments, **settings)
    assert "\n" not in str(raised.value)


def refused(call, *cases):
    """Return a test: call(*arguments) raises ValueError for each case (*arguments, message)."""

    @pytest.mark.parametrize("case", cases, ids=lambda case: case[-1])
    def test(case):
        *arguments, message = case
        fails(message, call, *arguments)

    return test
