"""Turn the pages and their outputs into the HTML book.

Warnings are errors, unless a page has not run yet: others may refer to its figures.
"""

import re
import shutil
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

from iterlin_study.records import csv_files, records

from iterlin_book import freshness, merge, pages, picture, states

VEGA = "_static/vega.js"
PREVIEW = "_static/key.png"
ICONS = "_static/scripts/fontawesome.js"
# An icon's name, its other names and its outline, as that script lists them.
ICON = re.compile(r'"?([a-z0-9-]+)"?:\[\d+,\d+,(\[[^]]*\]),"[0-9a-f]+",(?:"[^"]*"|\[[^]]*\])\],?')


def render(root):
    """Build ``_build/html`` unless it is up to date; return an exit status.

    The book that is there stays until a whole one replaces it.
    """
    build, html = root / "_build", root / "_build" / "html"
    complete = merge.build_source(root, build / "source")
    digest, stamp = _digest(root), html / ".digest"
    if stamp.is_file() and stamp.read_text() == digest:
        return states.DONE
    print("book: started", flush=True)
    started = time.monotonic()
    shutil.rmtree(build / "new", ignore_errors=True)
    done = sphinx(root, "html", build / "new", strict=complete)
    if done.returncode:
        print(warnings(done.stderr or done.stdout, root), file=sys.stderr)
        return states.FAILED
    made = build / "new" / "_build" / "html"
    add_vega(made)
    add_preview(root, made)
    add_records(root, made)
    trim_icons(made)
    (made / stamp.name).write_text(digest)
    shutil.rmtree(html, ignore_errors=True)
    made.rename(html)
    shutil.rmtree(build / "new")
    print(f"book: finished in {time.monotonic() - started:.1f} s", flush=True)
    return states.DONE


def _digest(root):
    """The digest of all that Sphinx reads: the merged pages, the library, which the API page
    quotes, the settings, the records, and this machinery."""
    paths = [*(root / "_build" / "source").rglob("*"), *(root / "lib").rglob("*")]
    paths += freshness.records(root)
    paths += [*Path(__file__).parent.glob("*.py"), root / "_toc.yml", root / "_config.yml"]
    hashed = sha256()
    for path in sorted(set(paths)):
        if path.is_file() and path.suffix != ".pyc":
            hashed.update(f"{path}\n".encode() + path.read_bytes())
    return hashed.hexdigest()


def sphinx(root, builder, output, strict=True):
    """Run one of Sphinx's builders on the merged pages; its result lies in output/_build/<builder>.

    Returns the finished process with its output captured. strict: a warning is an error.
    """
    # With the package's way of looking for garbage.
    code = "import iterlin_book; from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", code, "build", str(root / "_build" / "source")]
    command += ["--path-output", str(output), "--config", str(root / "_config.yml")]
    command += ["--toc", str(root / "_toc.yml"), "--builder", builder]
    command += ["--keep-going", "--quiet", *(["-W"] if strict else [])]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def add_vega(html):
    """Put Vega beside the pages at the top of the book if one asks for it (explore).

    Among the book's own files Jupyter Book would load it on every page.
    """
    target = html / VEGA
    if not any(VEGA in page.read_text("utf8") for page in html.glob("*.html")):
        return
    from vl_convert import javascript_bundle  # few books need it

    script = javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # In a function, so that its many short names do not meet another script's.
    pages.write_atomically(target, f"(() => {{\n{script}\n}})();\n")


def add_preview(root, html):
    """Put the landing page's figure beside it as PNG, if it names one: what shared links show."""
    if PREVIEW in (html / "index.html").read_text("utf8") and (svg := picture.drawn(root)):
        from vl_convert import svg_to_png

        (html / PREVIEW).write_bytes(svg_to_png(svg, scale=2))


def add_records(root, html):
    """Put every record beside the pages as CSV: their captions link to it."""
    for path in freshness.records(root):
        if path.stem != pages.QUICK:
            record = records.load(path.parent.name, path.stem, path)
            target = html / csv_files.FOLDER / csv_files.name_of(record)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(csv_files.text(record), "utf8")


def trim_icons(html):
    """Leave the icons that pages use in the theme's script: it has 2,000, four fifths of a page."""
    script = html / ICONS
    files = [*html.rglob("*.html"), *script.parent.glob("*.js")]
    texts = [path.read_text("utf8") for path in files if path != script]
    used = {name for text in texts for name in re.findall(r"\bfa-([a-z0-9-]+)", text)}

    def kept(icon):
        names = {icon[1], *re.findall(r'"([a-z0-9-]+)"', icon[2])}
        return icon[0] if names & used else ""

    script.write_text(ICON.sub(kept, script.read_text("utf8")), "utf8")


def warnings(text, root):
    """Return Sphinx's warnings with the names of the pages' own files."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).replace(f"{root / '_build' / 'source'}/", "book/")
    text = re.sub(r"book/(\S+)\.ipynb(:\d+)?:", r"book/\1.md:", text)
    return "\n".join([line for line in text.splitlines() if line.strip()][-60:])
