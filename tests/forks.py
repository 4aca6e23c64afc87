"""Runs pytest again and again on different copies of the library: ``python tests/forks.py``.

A line of JSON on standard input, {"library", "arguments", "log"}, is answered by pytest's exit
status. Everything but the library is imported once; each line is served by a fork of that process,
which imports the copy. A fork that ran another library than it was told exits with 99.
"""

import json
import os
import sys
import traceback

OTHER_LIBRARY, BROKEN = 99, 98


def serve(library, arguments):
    sys.path.insert(0, library)
    # Of plugins that came with the imports below, in which nothing is asserted.
    known = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    # The first example that fails will do, however large it is.
    quickly = ["--hypothesis-profile", "unshrunk"]
    status = int(pytest.main([*known, *quickly, *arguments]))
    import iterlin

    return status if iterlin.__file__.startswith(library + os.sep) else OTHER_LIBRARY


def forked(request):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = BROKEN
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        status = serve(request["library"], request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    # What the tests of mutants import; none of it starts a thread before it computes.
    import beartype  # noqa: F401
    import hypothesis  # noqa: F401
    import jaxtyping  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import optax  # noqa: F401
    import pytest
    import xarray  # noqa: F401

    assert "iterlin" not in sys.modules
    for line in sys.stdin:
        print(forked(json.loads(line)), flush=True)
