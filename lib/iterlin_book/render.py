"""Turn ``_build/source`` into the HTML book, warnings being errors, and only what changed anew."""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from iterlin_book import pages

VEGA = "_static/vega.js"
# Lines that other pages repeat or point at: headings, labels, numbered things, directives' names.
_FRAME = re.compile(r"^(#|\(.+\)=|:label:|:name:|`{3,}\{|:{3,}\{|\$\$ *\()|\$\$ *\(.+\)$")


def frame_digest(root):
    """What every page shows: contents, settings, style, titles, numbering, bibliography."""
    root = Path(root)
    hashed = hashlib.sha256()
    extension = Path(__file__).with_name("theme.py")
    for path in (root / "_config.yml", root / "_toc.yml", root / "requirements.lock", extension):
        hashed.update(path.read_bytes() if path.is_file() else b"-")
    book = root / "book"
    for path in sorted([*book.rglob("*.bib"), *(book / "_static").glob("*")]):
        hashed.update(path.read_bytes())
    for page in pages.toc(root):
        lines = pages.source(root, page).read_text("utf8").splitlines()
        hashed.update(json.dumps([line for line in lines if _FRAME.search(line)]).encode())
    return hashed.hexdigest()


def render(root):
    """Build ``_build/html``; return the exit status of jupyter-book."""
    root = Path(root).resolve()
    build = root / "_build"
    html, doctrees = build / "html", build / ".doctrees"
    frame_file, frame = doctrees / "frame", frame_digest(root)
    if not (frame_file.is_file() and frame_file.read_text() == frame and html.is_dir()):
        shutil.rmtree(html, ignore_errors=True)
        shutil.rmtree(doctrees, ignore_errors=True)
    # After a build that failed or was killed all pages are read again: kept state would hide the
    # warnings of those that have not changed since.
    frame_file.unlink(missing_ok=True)
    done = sphinx(root, "html", root)
    if done.returncode:
        print(_warnings(done.stderr or done.stdout, root), file=sys.stderr)
        return done.returncode
    add_vega(html)
    frame_file.write_text(frame)
    return 0


def sphinx(root, builder, output):
    """Run one of Sphinx's builders on the merged pages; the finished process, its output captured.

    What is built lies in output/_build/<builder>.
    """
    # With the package's way of looking for garbage.
    code = "import iterlin_book; from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", code, "build", str(root / "_build" / "source")]
    command += ["--path-output", str(output), "--config", str(root / "_config.yml")]
    command += ["--toc", str(root / "_toc.yml"), "--builder", builder]
    command += ["-W", "--keep-going", "--quiet"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def drop_damaged(root):
    """Remove HTML pages that a crash emptied, with the stamp that calls the book complete."""
    html = Path(root) / "_build" / "html"
    for path in (html / f"{page}.html" for page in pages.toc(root)):
        if path.is_file() and path.stat().st_size == 0:
            path.unlink()
            pages.remove_stamps(html / ".built-")
            print(f"{path} was empty: it is made again", file=sys.stderr)


def add_vega(html):
    """Put Vega beside the pages at the top of the book if one asks for it (iterlin.study.dial).

    Among the book's own files Jupyter Book would load it on every page.
    """
    target = html / VEGA
    if target.is_file() or not any(VEGA in page.read_text("utf8") for page in html.glob("*.html")):
        return
    from vl_convert import javascript_bundle  # few books need it

    script = javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # In a function, so that none of its many short names meets another script's.
    pages.write_atomically(target, f"(() => {{\n{script}\n}})();\n")


def _warnings(text, root):
    """What Sphinx complained of, with the pages' own files and lines."""

    def place(match):
        page, number, line = match[1], int(match[2]) - 1, int(match[3]) - 1
        source = pages.source(root, page)
        cells = json.loads((root / "_build/source" / f"{page}.ipynb").read_text())["cells"]
        before, found, _ = source.read_text("utf8").partition("".join(cells[number]["source"]))
        start = f":{before.count(chr(10)) + line}" if found else ""
        return f"book/{page}.md{start}:"

    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = text.replace(f"{root / '_build' / 'source'}/", "book/")
    # Notebooks are numbered by cell and line, the latter from 2: 40002 starts the fourth cell.
    text = re.sub(r"book/(\S+)\.ipynb:(\d+?)(\d{4}):", place, text)
    return "\n".join([line for line in text.splitlines() if line.strip()][-60:])


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="iterlin_book.render", description=__doc__)
    parser.add_argument("--root", default=".", type=Path)
    parser.add_argument("--stamp", required=True, type=Path, help="written when the book is built")
    options = parser.parse_args(arguments)
    pages.remove_stamps(options.stamp)
    print("book: started", flush=True)
    started = time.monotonic()
    try:
        status = render(options.root)
    except pages.BookError as error:
        print(error, file=sys.stderr)
        return 2
    if status == 0:
        print(f"book: finished in {time.monotonic() - started:.1f} s", flush=True)
        options.stamp.touch()
    return status


if __name__ == "__main__":
    sys.exit(main())
