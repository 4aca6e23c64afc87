"""Runs pytest again and again on different copies of the library: ``python tests/forks.py``.

A line of JSON on standard input, {"library", "arguments", "log"}, is answered by pytest's exit
status. Everything but the library is imported once; each line is served by a fork of that process,
which imports the copy. A fork that ran another library than it was told exits with 99; one that
takes longer than "seconds", if the line has them, is ended with all that it started: 97.
"""

import json
import os
import resource
import signal
import sys
import time
import traceback

OTHER_LIBRARY, BROKEN, TOO_LONG = 99, 98, 97
# Bytes of address space: what a fault asks for must not take the memory of all.
MEMORY = 24 << 30


def serve(library, arguments):
    sys.path.insert(0, library)
    # For processes that tests start.
    os.environ["PYTHONPATH"] = os.pathsep.join([library, os.environ.get("PYTHONPATH", "")])
    # Of plugins that came with the imports below, in which nothing is asserted.
    known = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    # The first example that fails will do, however large it is.
    quickly = ["--hypothesis-profile", "unshrunk"]
    status = int(pytest.main([*known, *quickly, *arguments]))
    if "iterlin" not in sys.modules:
        return status or OTHER_LIBRARY  # it could not be imported, and tests failed
    found = sys.modules["iterlin"].__file__
    return status if found.startswith(library + os.sep) else OTHER_LIBRARY


def ended(child, seconds):
    """The exit status of a child, which is ended when the time is over or this process is."""
    deadline, status = time.monotonic() + seconds, TOO_LONG
    try:
        while time.monotonic() < deadline:
            found, code = os.waitpid(child, os.WNOHANG)
            if found:
                status, child = os.waitstatus_to_exitcode(code), None
                break
            time.sleep(0.02)
    finally:
        if child:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return status


def forked(request):
    child = os.fork()
    if child:
        return ended(child, request.get("seconds", float("inf")))
    status = BROKEN
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
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
