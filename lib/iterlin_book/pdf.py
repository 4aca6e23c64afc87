"""Print the built book as one PDF: ``python -m iterlin_book.pdf``, or `make pdf`.

The articles of all pages are put into one HTML document, in the order of the table of contents, so
that the browser itself makes links between pages, the outline and the tags for screen readers. It
is printed twice: the first print tells on which page each chapter begins. Folded code stays out.
"""

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

import yaml
from bs4 import BeautifulSoup

from iterlin_book import chromium, pages
from iterlin_book.pages import BookError

CONTENTS = "print-contents"
_LEFT_OUT = "a.headerlink, .viewcode-link, details.hide.above-input, button.copybtn"
_LABELS = ("for", "aria-labelledby", "aria-describedby", "aria-controls")


def parts(root):
    """The table of contents as (caption or None, names of pages); the root page comes alone."""
    tree = yaml.safe_load((Path(root) / "_toc.yml").read_text("utf8"))
    captions = {
        str(part["chapters"][0]["file"]).removesuffix(".md"): part.get("caption")
        for part in tree.get("parts", [tree])
        if part.get("chapters")
    }
    found = []
    for name in pages.toc(root):
        if not found or name in captions:
            found.append((captions.get(name), []))
        found[-1][1].append(name)
    return found


def articles(root, folder):
    """Page -> its article as a parsed tree, ready for one document: its ids are the only ones."""
    read = {}
    for name in pages.toc(root):
        path = Path(folder) / f"{name}.html"
        if not path.is_file():
            raise BookError(f"{path} does not exist: `make book` first")
        article = _parsed(path).find("article")
        for element in article.select(_LEFT_OUT):
            element.decompose()
        for element in article.find_all("details"):
            element["open"] = ""
        for element in article.find_all("noscript"):
            element.unwrap()  # what stands for a page's scripts, which print has not
        read[name] = article
    seen = Counter(tag["id"] for article in read.values() for tag in article.find_all(id=True))

    def unique(name, anchor):
        return anchor if seen[anchor] < 2 else f"{name}--{anchor}".replace("/", "-")

    for name, article in read.items():
        for tag in article.find_all(True):
            for label in _LABELS:
                if label in tag.attrs:
                    tag[label] = " ".join(unique(name, one) for one in tag[label].split())
            if "id" in tag.attrs:
                tag["id"] = unique(name, tag["id"])
        for tag in article.find_all("img", src=True):
            if not urlsplit(tag["src"]).scheme:
                tag["src"] = _resolved(name, tag["src"])
        for tag in article.find_all("a", href=True):
            address = urlsplit(tag["href"])
            if address.scheme or address.netloc:
                continue
            target = _resolved(name, address.path).removesuffix(".html") if address.path else name
            if target in read:
                anchor = unquote(address.fragment)
                tag["href"] = f"#{unique(target, anchor) if anchor else chapter(target)}"
            else:
                del tag["href"]  # source code, downloads: not in print
    return read


def _parsed(path):
    text = path.read_text("utf8")
    return BeautifulSoup(text, "html.parser", multi_valued_attributes=None)  # all are strings


def _resolved(name, address):
    """An address relative to a page's folder, relative to the book's."""
    return os.path.normpath(os.path.join(os.path.dirname(name), unquote(address)))


def _about(root):
    return yaml.safe_load((Path(root) / "CITATION.cff").read_text("utf8"))


def _authors(about):
    keys = ("given-names", "family-names", "name")
    return ", ".join(" ".join(filter(None, map(one.get, keys))) for one in about["authors"])


def chapter(name):
    """The anchor of a page in the document."""
    return f"chapter-{name.replace('/', '-')}"


def document(root, folder, starts=None):
    """All pages as one HTML document; `starts` has the number of the page where each begins."""
    read, starts = articles(root, folder), starts or {}
    about = _about(root)
    config = yaml.safe_load((Path(root) / "_config.yml").read_text("utf8"))
    contents, body = [], []
    for caption, names in parts(root):
        entries = []
        if caption:
            body.append(f'<h1 class="print-part">{escape(caption)}</h1>')
        for name in names:
            article = read[name]
            heading = article.find("h1")
            title = heading.decode_contents() if heading else escape(name)
            entries.append(
                f'<li><a href="#{chapter(name)}">{title}</a> '
                f'<span class="print-number">{starts.get(name, "")}</span></li>'
            )
            if caption:  # chapters stand below their part in the outline
                for level in (5, 4, 3, 2, 1):
                    for tag in article.find_all(f"h{level}"):
                        tag.name = f"h{level + 1}"
            article["id"] = chapter(name)
            article["class"] = f"{article.get('class', '')} print-chapter"
            body.append(str(article))
        heading = f"<li>{escape(caption)}" if caption else "<li>"
        contents.append(f"{heading}<ol>{''.join(entries)}</ol></li>")
    front = _parsed(Path(folder) / f"{next(iter(read))}.html").head
    for tag in front.find_all(["script", "link", "noscript"]):
        styles = tag.name == "link" and "stylesheet" in tag.get("rel", [])
        if not (styles or "MathJax" in tag.text or "mathjax" in tag.get("src", "")):
            tag.decompose()
    front.title.string = config["title"]
    mathjax = "" if front.find("script") else _MATHJAX
    return f"""<!doctype html><html lang="en" data-theme="light" data-mode="light">
{front.decode().replace("</head>", f"{mathjax}</head>")}
<body class="print-book"><main class="bd-content"><header class="print-title">
<p class="print-name">{escape(config["title"])}</p><p>{escape(about["title"])}</p>
<p>{escape(_authors(about))}<br>Version {escape(str(about["version"]))}</p>
<p>{config.get("html", {}).get("extra_footer", "")}</p></header>
<nav class="{CONTENTS}" aria-label="Contents"><h1>Contents</h1><ul>{"".join(contents)}</ul></nav>
{"".join(body)}</main></body></html>"""


_MATHJAX = '<script defer src="_static/mathjax/tex-chtml.js"></script>'


async def _printed(root, folder, path):
    """Print to a path; the texts of all headings, as they stand in the outline."""
    import pikepdf

    wanted = {"path": path, "prefer_css_page_size": True, "print_background": True}
    async with chromium.launched() as browser:
        page = await browser.new_page()
        page.set_default_timeout(600_000)
        with chromium.served(folder) as address:
            text = document(root, folder)
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
                        text = document(root, folder, _starts(root, first))
            return await page.evaluate(
                "[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')]"
                ".map((heading) => heading.textContent.trim().replace(/\\s+/g, ' '))"
            )


def _starts(root, pdf):
    """Page of the book -> number of the sheet where it begins."""
    numbers = {sheet.objgen: number for number, sheet in enumerate(pdf.pages, 1)}
    places = pdf.Root.get("/Dests", {})
    found = {name: places.get(f"/{chapter(name)}") for name in pages.toc(root)}
    return {name: numbers[place[0].objgen] for name, place in found.items() if place is not None}


def _titled(items, titles):
    """Give the outline's entries the headings' own texts: the browser runs lines together."""
    for item in items:
        item.title = next(titles)
        _titled(item.children, titles)


def _size(items):
    return sum(1 + _size(item.children) for item in items)


def write(root, folder, path):
    """Write the PDF and return its number of sheets; chromium.Missing without a browser."""
    root, path = Path(root), Path(path)
    chromium.found()
    import pikepdf

    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        raw = Path(scratch) / "raw.pdf"
        headings = asyncio.run(_printed(root, Path(folder), raw))
        with pikepdf.open(raw) as pdf:
            with pdf.open_outline() as outline:
                if _size(outline.root) == len(headings):
                    _titled(outline.root, iter(headings))
            for key in list(pdf.docinfo):  # dates and versions of tools among them
                del pdf.docinfo[key]
            pdf.docinfo["/Title"] = _about(root)["title"]
            pdf.docinfo["/Author"] = _authors(_about(root))
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
