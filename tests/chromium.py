"""Chromium over its debugging pipe: load a page, press keys, ask; without another package."""

import json
import os
import select
import shutil
import subprocess
import time

from iterlin_book.chromium import NAMES

COMMAND = next(filter(None, map(shutil.which, NAMES)), None)
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
OPTIONS += ["--disable-background-networking", "--allow-file-access-from-files"]
SECONDS = 60
KEYS = {"Tab": 9, "End": 35, "Home": 36, "ArrowRight": 39}


class Page:
    """A page in a browser of its own, which ends with the `with` block.

    profile: an empty folder. It knows commands by the names and parameters of the DevTools
    protocol (https://chromedevtools.github.io/devtools-protocol/).
    """

    def __init__(self, address, profile):
        self.address, self.profile = address, profile
        self.number, self.rest, self.session = 0, b"", None

    def __enter__(self):
        commands, self.write = os.pipe()
        self.read, answers = os.pipe()
        # It reads commands from file 3 and answers on file 4.
        script = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        options = [*OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={self.profile}"]
        self.process = subprocess.Popen(
            ["bash", "-c", script, COMMAND, *options, "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        target = self.call("Target.createTarget", url=self.address)["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        return self

    def __exit__(self, *raised):
        self.process.terminate()
        self.process.wait(SECONDS)
        os.close(self.read)
        os.close(self.write)

    def call(self, method, **parameters):
        """The result of a command; AssertionError if it fails or takes too long."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            text, found, rest = self.rest.partition(b"\0")
            if found:
                self.rest = rest
                answer = json.loads(text)
                if answer.get("id") == self.number:
                    assert "error" not in answer, answer["error"]
                    return answer["result"]
                continue
            left = max(0, deadline - time.monotonic())
            assert select.select([self.read], [], [], left)[0], f"no answer: {method}"
            more = os.read(self.read, 1 << 16)
            assert more, "the browser has ended"
            self.rest += more

    def ask(self, expression):
        """The value of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression):
        """Until an expression is true."""
        deadline = time.monotonic() + SECONDS
        while not self.ask(expression):
            assert time.monotonic() < deadline, f"never: {expression}"
            time.sleep(0.05)

    def press(self, key):
        named = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **named)
