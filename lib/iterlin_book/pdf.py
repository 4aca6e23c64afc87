"""Print the built book as one PDF: ``python -m iterlin_book.pdf``, or `make pdf`.

All pages are one document (iterlin_book.document), so that the browser itself makes links between
pages, the outline and the tags for screen readers. It is printed twice: the first print tells on
which sheet each page begins.
"""

import argparse
import asyncio
import re
import sys
import time
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from iterlin_book import chromium, document, pages
from iterlin_book.pages import BookError


async def _printed(root, folder, path):
    """Print to a path; the texts of all headings, as they stand in the outline."""
    import pikepdf

    wanted = {"path": path, "prefer_css_page_size": True, "print_background": True}
    async with chromium.launched() as browser:
        page = await browser.new_page()
        page.set_default_timeout(600_000)
        with chromium.served(folder) as address:
            text = document.whole(root, folder)
            kind = "text/html; charset=utf-8"
            await page.route(
                f"{address}print", lambda route: route.fulfill(body=text, content_type=kind)
            )
            for last in (False, True):
                await page.goto(f"{address}print")
                await chromium.typeset(page)
                await page.pdf(**wanted, outline=last, tagged=last)
                if not last:
                    with pikepdf.open(path) as first:
                        text = document.whole(root, folder, _starts(root, first))
            return await page.evaluate(
                "[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')]"
                ".map((heading) => heading.textContent.trim().replace(/\\s+/g, ' '))"
            )


def _starts(root, pdf):
    """Page of the book -> number of the sheet where it begins."""
    numbers = {sheet.objgen: number for number, sheet in enumerate(pdf.pages, 1)}
    places = pdf.Root.get("/Dests", {})
    found = {name: places.get(f"/{document.chapter(name)}") for name in pages.toc(root)}
    return {name: numbers[place[0].objgen] for name, place in found.items() if place is not None}


def _entries(items):
    """An outline's entries, each before those below it."""
    for item in items:
        yield item
        yield from _entries(item.children)


def _numbered(data):
    """Names of tagged elements by their order: the browser counts what else it has made."""
    names = sorted(set(re.findall(rb"\(node(\d{8})\)", data)))
    order = {name: b"(node%08d)" % number for number, name in enumerate(names)}
    return re.sub(rb"\(node(\d{8})\)", lambda match: order[match[1]], data)


def write(root, folder, path):
    """Write the PDF and return its number of sheets; chromium.Missing without a browser."""
    root, path = Path(root), Path(path)
    chromium.found()
    import pikepdf

    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        raw = Path(scratch) / "raw.pdf"
        headings = asyncio.run(_printed(root, Path(folder), raw))
        with pikepdf.open(BytesIO(_numbered(raw.read_bytes()))) as pdf:
            with pdf.open_outline() as outline:
                entries = list(_entries(outline.root))
                if len(entries) == len(headings):  # the browser runs lines of a title together
                    for entry, heading in zip(entries, headings, strict=True):
                        entry.title = heading
            for key in list(pdf.docinfo):  # dates and versions of tools among them
                del pdf.docinfo[key]
            pdf.docinfo["/Title"] = document.about(root)["title"]
            pdf.docinfo["/Author"] = document.authors(document.about(root))
            pdf.save(path, object_stream_mode=pikepdf.ObjectStreamMode.generate,
                     deterministic_id=True)  # fmt: skip
            return len(pdf.pages)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="iterlin_book.pdf", description=__doc__)
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    options = parser.parse_args(arguments)
    path = options.root / "_build" / "iterlin.pdf"
    started = time.monotonic()
    path.unlink(missing_ok=True)  # none is better than one of another book
    try:
        count = write(options.root, options.root / "_build" / "html", path)
    except chromium.Missing as reason:
        print(f"no PDF was made: {reason}", file=sys.stderr)
        return 3
    except BookError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{path}: {count} pages, {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
