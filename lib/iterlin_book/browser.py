"""Check the built book in a browser, on a desk and on a phone: ``python -m iterlin_book.browser``.

Every page is opened in Debian's chromium, dark and narrow, with all folded parts open, and then
made wide and light. A page must not ask anything of other sites, report errors, scroll sideways,
fail to set a formula, or break a rule of axe-core for WCAG 2.1 A and AA (on wide pages but the
first, a rule of colours); text in drawings must be readable on a phone, and a dial must turn by the
keyboard. One line for each fault.
"""

import asyncio
import os
import sys
from pathlib import Path

from iterlin_study.report import plotting

from iterlin_book import chromium
from iterlin_book.pages import one_line

PHONE, LAPTOP = 390, 1100  # the latter without the theme's right margin
# A width comes with a colour scheme: colours do not depend on it, and axe-core takes its time.
SCHEMES = {PHONE: "dark", 1360: "light"}
LEAST_TEXT = 9  # CSS pixels
# The smallest print of a figure in its own size, CSS pixels: no page sets another.
PIXELS_OF_TEXT = plotting.SIZE * 96 / 72
MOST_TABS = 500
PROBES = Path(__file__).with_suffix(".js")


def names(folder):
    """Return the pages of a folder to open, such as experiments/xor.html.

    Of the pages of source code (_modules), which are made alike, one is opened.
    """
    paths = sorted(path.relative_to(folder) for path in Path(folder).rglob("*.html"))
    pages = [path.as_posix() for path in paths if "_static" not in path.parts]
    code = [name for name in pages if name.startswith("_modules/")]
    return [name for name in pages if name not in code[1:]]


async def visit(context, address, name, axe):
    """Open one page and return its faults at each width: {width: [(selector, what is wrong)]}."""
    found = {width: [] for width in SCHEMES}
    page = await context.new_page()

    def on_request(request):
        if not request.url.startswith((address, "data:", "blob:")):
            faults.append((request.url, "is asked of another site"))

    def on_console(message):
        if message.type == "error":
            where = message.location["url"].removeprefix(address).partition("?")[0]
            faults.append((where, f"console error: {one_line(message.text)}"))

    page.on("request", on_request)
    page.on("console", on_console)
    page.on("pageerror", lambda error: faults.append(("script", one_line(error))))
    for width, faults in found.items():
        await page.emulate_media(color_scheme=SCHEMES[width])
        await resize(page, width)
        if width == PHONE:
            await page.goto(address + name)
            await chromium.typeset(page)
            await page.evaluate(axe)
            await page.evaluate(PROBES.read_text("utf8"))
        await page.evaluate("(scheme) => iterlin.open(scheme)", SCHEMES[width])
        for probe in ("formulas", "sideways"):
            faults += await page.evaluate(f"iterlin.{probe}()")
        if width == PHONE:
            scales = await page.evaluate("iterlin.scales()")
            texts = [(where, scale * PIXELS_OF_TEXT) for where, scale in scales]
            for where, size in [*await page.evaluate("iterlin.drawn()"), *texts]:
                if size < LEAST_TEXT - 0.05:
                    faults.append((where, f"text of {size:.1f} pixels"))
        # What a wide page has beside its article is the same on each: the landing page tells.
        colours_alone = width != PHONE and name != "index.html"
        faults += await page.evaluate("(alone) => iterlin.axe(alone)", colours_alone)
        if width == PHONE and await page.query_selector("input[type=range]"):
            faults += await turned(page)
            faults += await page.evaluate("iterlin.axe()")
        if width != PHONE:
            await resize(page, LAPTOP)
            faults += await page.evaluate("iterlin.sideways()")
    await page.close()
    return {width: dict.fromkeys(map(tuple, faults)) for width, faults in found.items()}


async def resize(page, width):
    await page.set_viewport_size({"width": width, "height": 900})
    await page.wait_for_timeout(100)  # a drawing fits itself in a frame later


async def turned(page):
    """Turn every dial by the keyboard alone and return the faults."""
    faults = []
    dials = await page.evaluate(
        "[...document.querySelectorAll('input[type=range]')].map(iterlin.name)"
    )
    await page.evaluate("document.activeElement.blur()")
    for _ in range(MOST_TABS):
        await page.keyboard.press("Tab")
        name = await page.evaluate("iterlin.name(document.activeElement)")
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


async def visits(folder, pages):
    """{page: {width: faults}} of pages of a folder. Raises chromium.Missing without a browser."""
    async with chromium.launched() as browser:
        from axe_playwright_python.base import AXE_SCRIPT

        # The largest first, so that no worker is left alone with it at the end.
        todo = sorted(pages, key=lambda name: (Path(folder) / name).stat().st_size)
        found = dict.fromkeys(pages)

        async def work(address):
            context = await browser.new_context(reduced_motion="reduce")
            await context.add_init_script("localStorage.clear()")  # each visit is a first one
            while todo:
                name = todo.pop()
                found[name] = await visit(context, address, name, AXE_SCRIPT)

        with chromium.served(folder) as address:
            await asyncio.gather(*(work(address) for _ in range(os.cpu_count())))
    return found


def main(folder="_build/html"):
    if not (pages := names(folder)):
        print(f"{folder} has no pages", file=sys.stderr)
        return 2
    try:
        found = asyncio.run(visits(folder, pages))
    except chromium.Missing as reason:
        print(f"{folder}: not checked in a browser: {reason}")
        return 0
    lines = {}  # each with the widths at which it is so
    for page, at in found.items():
        for width, faults in at.items():
            for where, what in faults:
                lines.setdefault((page, f"{where}: {what}"), []).append(str(width))
    for (page, fault), widths in lines.items():
        print(f"{page} at {' and '.join(widths)}: {fault}")
    print(f"{len(pages)} pages, {len(lines)} faults")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
