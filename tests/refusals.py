"""Tests that a call with a mistake is refused in one line, one for each mistake."""

import pytest


def refused(call, *cases):
    """Return a test: call(*arguments) raises ValueError for each case (*arguments, message)."""

    @pytest.mark.parametrize("case", cases, ids=lambda case: case[-1])
    def test(case):
        *arguments, message = case
        with pytest.raises(ValueError, match=message) as error:
            call(*arguments)
        assert "\n" not in str(error.value)

    return test
