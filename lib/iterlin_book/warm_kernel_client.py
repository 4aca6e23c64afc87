"""What Jupyter starts as a page's kernel: it stands for a copy of a process of `warm_kernels`.

``python -I -S warm_kernel_client.py PLACE COMMAND...``: the command is that of an ordinary kernel,
which this becomes where PLACE gives none. It passes its streams, folder and environment on, then
signals, and ends as the copy does; if this is killed, so is the copy. Loads next to nothing.
"""

import json
import os
import signal
import socket
import sys

TAKEN = b"+"  # the answer where a copy has been made; its exit status follows when it has ended


def main(place, *command):
    with socket.socket(socket.AF_UNIX) as server:
        if not _asked(server, place, command):
            os.execv(command[0], command)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: server.send(bytes([number])))
        status = b""
        while part := server.recv(16):
            status += part
    status = int(status or 1)
    if status < 0:  # the signal that ended it
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _asked(server, place, command):
    """Whether a copy has been made."""
    request = {
        "arguments": command[3:],  # of PYTHON -m ipykernel_launcher
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    text = json.dumps(request).encode()
    try:
        server.connect(place)
        socket.send_fds(server, [b"%8d" % len(text)], [0, 1, 2])
        server.sendall(text)
        return server.recv(1) == TAKEN
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
