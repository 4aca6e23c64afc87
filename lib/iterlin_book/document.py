"""The articles of all pages in one HTML document, in the order of the table of contents, for print.

Links between pages lead to places in it; folded code stays out, and what else is folded is open.
"""

import os
from collections import Counter
from html import escape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from bs4 import BeautifulSoup

from iterlin_book import pages
from iterlin_book.pages import BookError

_LEFT_OUT = "a.headerlink, .viewcode-link, details.hide.above-input, button.copybtn"
_LABELS = ("for", "aria-labelledby", "aria-describedby", "aria-controls")
_MATHJAX = '<script defer src="_static/mathjax/tex-chtml.js"></script>'


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


def about(root):
    """What CITATION.cff says of the book."""
    return yaml.safe_load((Path(root) / "CITATION.cff").read_text("utf8"))


def authors(known):
    """The names of its authors, as one text."""
    keys = ("given-names", "family-names", "name")
    return ", ".join(" ".join(filter(None, map(one.get, keys))) for one in known["authors"])


def chapter(name):
    """The anchor of a page in the document."""
    return f"chapter-{name.replace('/', '-')}"


def whole(root, folder, starts=None):
    """All pages as one HTML document; `starts` has the number of the page where each begins."""
    read, starts = articles(root, folder), starts or {}
    known = about(root)
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
<p class="print-name">{escape(config["title"])}</p><p>{escape(known["title"])}</p>
<p>{escape(authors(known))}<br>Version {escape(str(known["version"]))}</p>
<p>{config.get("html", {}).get("extra_footer", "")}</p></header>
<nav class="print-contents" aria-label="Contents">
<h1>Contents</h1><ul>{"".join(contents)}</ul></nav>
{"".join(body)}</main></body></html>"""
