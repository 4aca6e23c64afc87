"""Turn the pages and their outputs into the HTML book; warnings are errors."""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from iterlin_book import merge, pages

VEGA = "_static/vega.js"


def render(root, chosen=()):
    """Build ``_build/html`` from the pages' outputs; return the exit status of Sphinx.

    chosen: as of `merge.build_source`. The book that is there is replaced by a whole one, or stays.
    """
    build = root / "_build"
    merge.build_source(root, build / "source", chosen)
    shutil.rmtree(build / "new", ignore_errors=True)
    done = sphinx(root, "html", build / "new")
    if done.returncode:
        print(_warnings(done.stderr or done.stdout, root), file=sys.stderr)
        return done.returncode
    made, html = build / "new" / "_build" / "html", build / "html"
    add_vega(made)
    shutil.rmtree(html, ignore_errors=True)
    made.rename(html)
    shutil.rmtree(build / "new")
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
    parser.add_argument("--stamp", required=True, type=Path, help="written when the book is built")
    parser.add_argument("--page", action="append", default=[], help="a page that ran, if not all")
    options = parser.parse_args(arguments)
    print("book: started", flush=True)
    started = time.monotonic()
    try:
        status = render(Path().resolve(), options.page)
    except pages.BookError as error:
        print(error, file=sys.stderr)
        return 2
    if status == 0:
        print(f"book: finished in {time.monotonic() - started:.1f} s", flush=True)
        options.stamp.touch()
    return status


if __name__ == "__main__":
    sys.exit(main())
