"""Check the built book in a browser, on a desk and on a phone: ``python -m iterlin_book.browser``.

Every page is opened in Debian's chromium twice: in light and wide, in dark and narrow; what is
folded is opened. It may ask nothing of other sites, say no error, not scroll sideways, fail no
formula, break no rule of axe-core for WCAG 2.1 A and AA; drawn text must be readable on a phone,
and a dial must turn by the keyboard. One line for each fault. Of the pages of source code
(_modules), which are made alike, one is opened.
"""

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from iterlin.study import plotting

from iterlin_book import chromium

PHONE = 390
# A width comes with a colour scheme: colours do not depend on it, and axe-core takes its time.
SCHEMES = {1360: "light", PHONE: "dark"}
LEAST_TEXT = 9  # CSS pixels
# The smallest print of a figure in its own size, CSS pixels: no page sets another.
PIXELS_OF_TEXT = plotting.SIZE * 96 / 72
MOST_TABS = 500
PROBES = Path(__file__).with_suffix(".js")


@dataclass
class Visit:
    """A page at one width, and its faults as (selector, what)."""

    page: str
    width: int
    faults: list = field(default_factory=list)


def names(folder, chosen=()):
    """The pages of a folder to open, such as experiments/xor.html; ValueError for unknown ones."""
    folder = Path(folder)
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*.html"))
    pages = [path.as_posix() for path in paths if "_static" not in path.parts]
    code = [name for name in pages if name.startswith("_modules/")]
    if not chosen:
        return [name for name in pages if name not in code[1:]]
    wanted = [f"{name.removesuffix('.html')}.html" for name in chosen]
    if unknown := [name for name in wanted if name not in pages]:
        raise ValueError(f"{folder} has no page {', '.join(unknown)}")
    return wanted


async def visit(context, address, name, width, axe):
    """Open one page and look at it; a Visit."""
    seen = Visit(name, width)
    page = await context.new_page()

    def on_request(request):
        if not request.url.startswith((address, "data:", "blob:")):
            seen.faults.append((request.url, "is asked of another site"))

    def on_console(message):
        if message.type == "error":
            where = message.location["url"].removeprefix(address).partition("?")[0]
            seen.faults.append((where, f"console error: {_line(message.text)}"))

    page.on("request", on_request)
    page.on("console", on_console)
    page.on("pageerror", lambda error: seen.faults.append(("script", _line(error))))
    try:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme=SCHEMES[width])
        await page.goto(address + name)
        await chromium.typeset(page)
        await page.evaluate(axe)
        await page.evaluate(PROBES.read_text("utf8"))
        await page.evaluate("(scheme) => iterlin.open(scheme)", SCHEMES[width])
        await _look(page, seen)
        if await page.query_selector("input[type=range]"):
            seen.faults += await turned(page)
            seen.faults += await broken_rules(page)
    finally:
        await page.close()
    seen.faults = list(dict.fromkeys(seen.faults))
    return seen


async def _look(page, seen):
    """All that can be seen on a page that nobody has touched."""
    for probe in ("formulas", "sideways"):
        seen.faults += map(tuple, await page.evaluate(f"iterlin.{probe}()"))
    drawn = await page.evaluate("iterlin.drawn()")
    scales = await page.evaluate("iterlin.scales()")
    texts = drawn + [(where, scale * PIXELS_OF_TEXT) for where, scale in scales]
    small = [(where, size) for where, size in texts if size < LEAST_TEXT - 0.05]
    if seen.width == PHONE:
        seen.faults += [(where, f"text of {size:.1f} pixels") for where, size in small]
    seen.faults += await broken_rules(page)


async def broken_rules(page):
    """What axe-core finds, as faults."""
    return [tuple(fault) for fault in await page.evaluate("iterlin.axe()")]


async def turned(page):
    """Move every dial by the keyboard alone; what does not work, as faults."""
    faults = []
    dials = await page.evaluate(
        "[...document.querySelectorAll('input[type=range]')].map(iterlin.name)"
    )
    await page.evaluate("document.activeElement.blur()")
    for _ in range(MOST_TABS):
        await page.keyboard.press("Tab")
        name = await page.evaluate(
            "(e => e.matches('input[type=range]') && iterlin.name(e))(document.activeElement)"
        )
        if name not in dials:
            continue
        dials.remove(name)
        before = await page.evaluate("[document.activeElement.value, iterlin.state()]")
        for key in ("ArrowRight", "ArrowLeft"):  # it may stand at its end
            await page.keyboard.press(key)
            if await page.evaluate("document.activeElement.value") != before[0]:
                break
        else:
            faults.append((name, "arrow keys do not turn it"))
        await page.wait_for_timeout(100)  # what it shows may come a frame later
        if await page.evaluate("iterlin.state()") == before[1]:
            faults.append((name, "nothing shown changes when it turns"))
        if not dials:
            break
    return faults + [(name, "Tab does not reach it") for name in dials]


def _line(text):
    return " ".join(str(text).split())


async def visits(folder, pages, workers=None):
    """All visits to pages of a folder, in order; chromium.Missing where there is no browser."""
    async with chromium.launched() as browser:
        from axe_playwright_python.base import AXE_SCRIPT

        # The slowest first: by size, so that no worker is left alone with it at the end.
        todo = sorted(pages, key=lambda name: (Path(folder) / name).stat().st_size)
        todo = [(name, width) for name in todo for width in SCHEMES]
        done = []

        async def work(address):
            context = await browser.new_context(reduced_motion="reduce")
            await context.add_init_script("localStorage.clear()")  # no page knows of another
            while todo:
                done.append(await visit(context, address, *todo.pop(), AXE_SCRIPT))
            await context.close()

        with chromium.served(folder) as address:
            await asyncio.gather(*(work(address) for _ in range(workers or os.cpu_count())))
    return sorted(done, key=lambda seen: (pages.index(seen.page), -seen.width))


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="iterlin_book.browser", description=__doc__)
    parser.add_argument("folder", nargs="?", default="_build/html", type=Path)
    parser.add_argument("--page", action="append", default=[], help="one such as experiments/xor")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        pages = names(options.folder, options.page)
        if not pages:
            raise ValueError(f"{options.folder} has no pages")
        seen = asyncio.run(visits(options.folder, pages))
    except chromium.Missing as reason:
        print(f"{options.folder}: not checked in a browser: {reason}")
        return 0
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    faults = {}  # (page, where, what) -> the widths at which it is so
    for one in seen:
        for fault in one.faults:
            faults.setdefault((one.page, *fault), []).append(str(one.width))
    for (page, where, what), widths in faults.items():
        print(f"{page} at {' and '.join(widths)}: {where}: {what}")
    seconds = time.monotonic() - started
    print(f"{len(pages)} pages, {len(faults)} faults, {seconds:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
