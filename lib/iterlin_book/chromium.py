"""Run Debian's chromium by playwright, to check and to print the built book.

The browser may be missing: reading and building the book does not need it.
"""

import shutil
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

# The first has no windows, for which the others draw and run scripts of their own.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
HOST = "127.0.0.1"
# Nothing but the served folder can be reached, so that the results are the same everywhere.
ARGUMENTS = [f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {HOST}", "--disable-gpu"]


class Missing(Exception):
    """There is no browser; the message says which one would do."""


def found():
    """Return the path of a chromium. Raises Missing without one."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise Missing("no chromium on this machine (Debian's chromium-headless-shell would do)")
    return path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@asynccontextmanager
async def launched():
    """Start a browser and close it at the end. Raises Missing as `found`."""
    path = found()
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        await browser.close()


@contextmanager
def served(folder):
    """Serve a folder on this machine meanwhile; the value is its address."""
    with ThreadingHTTPServer((HOST, 0), partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()


async def typeset(page):
    """Wait until all pictures and fonts are loaded and the formulas are set."""
    await page.evaluate(
        """async () => {
          for (const image of document.images) image.loading = "eager";
          await Promise.allSettled([...document.images].map((image) => image.decode()));
          await window.MathJax?.startup?.promise;
          document.body.getBoundingClientRect();  // asks for the fonts
          await document.fonts.ready;
        }"""
    )
