"""A browser for the checks and the print of the built book: Debian's chromium, moved by playwright.

Neither is asked of those who only read or build the book, so that both may be missing; a browser
that playwright would download is not used.
"""

import shutil
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

# The first has no windows, for which the others draw and run scripts of their own.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PACKAGES = ("playwright", "axe_playwright_python", "pikepdf")
HOST = "127.0.0.1"
# Nothing but the served folder can be reached, so that the results are the same everywhere.
ARGUMENTS = [f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {HOST}", "--disable-gpu"]


class Missing(Exception):
    """There is no browser to be had; the text says what is missing."""


def found():
    """The path of a chromium; Missing where there is none, or a package that works with it."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise Missing("no chromium on this machine (Debian's chromium-headless-shell would do)")
    if lacking := [name for name in PACKAGES if find_spec(name) is None]:
        raise Missing(f"not installed: {', '.join(lacking)} (the project's group `browser`)")
    return path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    """The address under which a folder can be read on this machine meanwhile."""
    handler = partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer((HOST, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()


@asynccontextmanager
async def launched():
    """A running browser of playwright's; Missing as in `found`."""
    path = found()
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


async def typeset(page):
    """Wait until pictures and fonts are there and the formulas are set, all the way down."""
    await page.evaluate(
        """async () => {
          for (const image of document.images) image.loading = "eager";
          await Promise.allSettled([...document.images].map((image) => image.decode()));
          await window.MathJax?.startup?.promise;
          document.body.getBoundingClientRect();  // asks for the fonts
          await document.fonts.ready;
        }"""
    )
