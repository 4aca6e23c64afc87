"""`import iterlin` gives the public names, and completion lists no others."""

import iterlin
from iterlin.training import losses


def test_completion_lists_the_public_names_and_no_others():
    assert dir(iterlin) == sorted(iterlin.__all__)
    assert all(hasattr(iterlin, name) for name in iterlin.__all__)
    assert iterlin.losses is losses
