"""Kernels that begin where most pages are after their imports, for a build of many pages.

To load what a page uses takes seconds, each time the same. One process loads it, does nothing else,
and gives a page a copy of itself (`serve`; fork), before JAX has a device or any thread runs. What
Jupyter starts as the page's kernel is a small program that stands for the copy
(`warm_kernel_client`): where it finds no such process it becomes an ordinary kernel.
"""

import builtins
import gc
import importlib.util
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from iterlin_book import processes
from iterlin_book.warm_kernel_client import TAKEN

CLIENT = Path(__file__).with_name("warm_kernel_client.py")
PLACE = "ITERLIN_WARM_KERNELS"  # where the process listens
LOADED = ("matplotlib.pyplot", "ipykernel.kernelapp", "sklearn.datasets")
# For linear algebra, when it is loaded; Snakemake tells its jobs the same.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# It enters itself in the kernel that it is loaded in: each copy does that.
BACKEND = "matplotlib_inline.backend_inline"
_LOADS_BACKEND = f"__import__('importlib').import_module('{BACKEND}') and None"
# Read when something is loaded: a page that is told otherwise needs a process of its own.
_READ_ON_LOADING = ("JAX_", "XLA_", "PYTHON", "MPL", "PATH", "LD_", "TF_")
_LOOK = 0.5  # seconds between looks at whether the build is still there


@contextmanager
def serving():
    """Have a process that gives out kernels while this lasts, where the system has what it takes;
    the environment, which is to be that of the pages, tells them where. Gives the process."""
    if not hasattr(os, "pidfd_open"):  # Linux
        yield None
        return
    with processes.socket_folder() as folder:
        place = f"{folder}/kernels"
        command = [sys.executable, "-m", "iterlin_book.warm_kernels"]
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(place)
            listener.listen()  # whoever comes before all is loaded waits
            number = listener.fileno()
            server = subprocess.Popen(
                [*command, str(number)],
                env=os.environ | ONE_THREAD,
                start_new_session=True,
                pass_fds=[number],
            )
        os.environ[PLACE] = place
        try:
            yield server
        finally:
            del os.environ[PLACE]
            server.terminate()
            server.wait()


def manager():
    """The class of a kernel's manager where kernels are given out; None where none are."""
    if PLACE not in os.environ:
        return None
    from jupyter_client import AsyncKernelManager

    class Manager(AsyncKernelManager):
        def format_kernel_cmd(self, extra_arguments=None):
            ordinary = super().format_kernel_cmd(extra_arguments)
            return [sys.executable, "-I", "-S", str(CLIENT), os.environ[PLACE], *ordinary]

    return Manager


class _Copy(NamedTuple):
    process: int
    ended: int  # a file that can be read once it has
    client: socket.socket  # of the program that stands for it


def serve(number):
    """Load what pages use, and be copied until the process that started this one has gone.

    number: of the file at which clients come. In a copy it returns the arguments of the kernel that
    this is to be.
    """
    parent, environment = os.getppid(), dict(os.environ)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    copies = []
    with socket.socket(fileno=number) as listener:
        load()
        try:
            while os.getppid() == parent:
                for file, copy in _ready(listener, copies):
                    if copy is None:
                        asked = _request(client := listener.accept()[0], environment)
                        if asked is None:
                            client.close()
                            continue
                        if (process := os.fork()) == 0:
                            for other in copies:
                                other.client.close()
                                os.close(other.ended)
                            client.close()
                            return _become(*asked)
                        copies.append(_Copy(process, os.pidfd_open(process), client))
                        for descriptor in asked[1]:
                            os.close(descriptor)
                        _tell(client, TAKEN)
                    elif copy in copies and file is copy.client:
                        os.kill(copy.process, _signal_from(copy.client))
                    elif copy in copies:
                        copies.remove(copy)
                        _bury(copy)
        except SystemExit:
            pass
    for copy in copies:
        os.kill(copy.process, signal.SIGKILL)
    sys.exit()


def _ready(listener, copies):
    """(file, its copy) of what there is to do: None for another client, one that came or went."""
    waiting = {listener: None}
    for copy in copies:
        waiting |= {copy.client: copy, copy.ended: copy}
    ready, _, _ = select.select(list(waiting), [], [], _LOOK)
    return [(file, waiting[file]) for file in ready]


def _signal_from(client):
    """What a client passes on; where it is gone, so shall be its copy."""
    try:
        return (client.recv(1) or [signal.SIGKILL])[0]
    except OSError:
        return signal.SIGKILL


def _bury(copy):
    os.close(copy.ended)
    status = os.waitpid(copy.process, 0)[1]
    _tell(copy.client, str(os.waitstatus_to_exitcode(status)).encode())
    copy.client.close()


def _tell(client, answer):
    with suppress(OSError):  # it may be gone
        client.sendall(answer)


def load():
    """What pages use, and how; nothing of it may start a thread or look for a device."""
    import iterlin

    # Where pandas looks, once, whether it is in a kernel, which shows more columns.
    builtins.get_ipython = lambda: SimpleNamespace(kernel=None)
    ours = pkgutil.walk_packages(iterlin.__path__, "iterlin.")
    for name in (*LOADED, *(module.name for module in ours)):
        with suppress(Exception):  # it is for the page that needs it to say what is wrong
            importlib.import_module(name)
    del builtins.get_ipython
    sys.modules.pop(BACKEND, None)
    gc.collect()
    gc.freeze()  # these objects stay: no copy looks through them


def _request(client, environment):
    """(what a client asks for, its standard streams), or None for one that is not served."""
    descriptors = []
    try:
        size, descriptors, _, _ = socket.recv_fds(client, 8, 3)
        text = b""
        while len(text) < int(size):
            if not (part := client.recv(int(size) - len(text))):
                raise ValueError
            text += part
        request = json.loads(text)
        if len(descriptors) == 3 and _alike(request["environment"], environment):
            return request, descriptors
    except (OSError, ValueError):
        pass
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def _alike(*environments):
    first, second = (
        {name: value for name, value in each.items() if name.startswith(_READ_ON_LOADING)}
        for each in environments
    )
    return first == second


def _become(request, descriptors):
    """In a copy: take a client's place, and return the arguments of the kernel."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.environ["JPY_PARENT_PID"] = str(os.getppid())  # the kernel ends with that process
    return request["arguments"]


def main(number):
    # As an ordinary kernel: the folder is on the path of a page, but nothing of it is loaded here.
    if Path(sys.path[0]) == Path.cwd():
        del sys.path[0]
    arguments = serve(int(number))
    # From here on this is the kernel of one page.
    import numpy as np
    from ipykernel.kernelapp import launch_new_instance

    sys.argv = [importlib.util.find_spec("ipykernel_launcher").origin, *arguments]
    np.random.seed()  # noqa: NPY002 -- else all pages would begin with the same state
    launch_new_instance(argv=[*arguments, f"--IPKernelApp.code_to_run={_LOADS_BACKEND}"])


if __name__ == "__main__":
    main(*sys.argv[1:])
