"""Print the book as one PDF: ``python -m iterlin_book.pdf``, or `make pdf`.

Sphinx puts all pages into one document, in the order of the contents; the browser makes its links,
its outline and the tags for screen readers.
"""

import asyncio
import sys
from pathlib import Path

from iterlin_book import chromium, pages, render
from iterlin_book.pages import BookError

# Sphinx leaves anchors that several pages have as they are, and links that cells print lead to the
# pages' files. What is folded is opened, and pictures stand for what scripts draw.
MEND = """() => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const still of document.querySelectorAll("noscript")) still.outerHTML = still.textContent;
  for (const page of document.querySelectorAll("span[id^=document-] + section")) {
    for (const target of page.querySelectorAll("[id]")) {
      if (document.getElementById(target.id) === target) continue;
      const links = page.querySelectorAll(`a[href="#${CSS.escape(target.id)}"]`);
      target.id = `${page.previousElementSibling.id}--${target.id}`;
      for (const link of links) link.setAttribute("href", `#${target.id}`);
    }
  }
  for (const link of document.querySelectorAll("article a[href]")) {
    const [page, anchor] = link.getAttribute("href").split("#");
    if (page === "index.html" && anchor) link.setAttribute("href", `#${anchor}`);
    else if (document.getElementById(`document-${page.replace(".html", "")}`))
      link.setAttribute("href", `#${anchor || `document-${page.replace(".html", "")}`}`);
    else if (page && !page.includes(":")) link.removeAttribute("href");
  }
}"""
HEADINGS = """[...document.querySelectorAll("h1, h2, h3, h4, h5, h6, [role=heading]")]
  .filter((heading) => heading.getClientRects().length)
  .map((heading) => heading.textContent.trim().replace(/\\s+/g, " "))"""


async def printed(folder, path):
    """Print the document in a folder and return the texts of its headings, in their order."""
    async with chromium.launched() as browser:
        page = await browser.new_page()
        page.set_default_timeout(600_000)
        with chromium.served(folder) as address:
            await page.goto(address)
            await page.emulate_media(media="print")
            await page.evaluate(MEND)
            await chromium.typeset(page)
            wanted = {"prefer_css_page_size": True, "print_background": True}
            await page.pdf(path=path, outline=True, tagged=True, **wanted)
            return await page.evaluate(HEADINGS)


def entries(items):
    """Yield the entries of an outline, each before those below it."""
    for item in items:
        yield item
        yield from entries(item.children)


def write(root, path):
    """Write the PDF and return its number of sheets. Raises chromium.Missing without a browser."""
    chromium.found()
    import pikepdf

    done = render.sphinx(root, "singlehtml", root / "_build" / "print")
    if done.returncode:
        print(render.warnings(done.stderr or done.stdout, root), file=sys.stderr)
        raise BookError(f"Sphinx ended with status {done.returncode}")
    headings = asyncio.run(printed(root / "_build/print/_build/singlehtml", path))
    with pikepdf.open(path, allow_overwriting_input=True) as pdf:
        with pdf.open_outline() as outline:
            found = list(entries(outline.root))
            if len(found) == len(headings):  # the browser repeats headings of two lines
                for entry, heading in zip(found, headings, strict=True):
                    entry.title = heading.removesuffix("#")
        pdf.docinfo["/Title"] = pages.load_yaml(root / "CITATION.cff")["title"]
        pdf.save(path, object_stream_mode=pikepdf.ObjectStreamMode.generate)
        return len(pdf.pages)


def main(root):
    path = root / "_build" / "iterlin.pdf"
    path.unlink(missing_ok=True)  # none is better than one of another book
    try:
        print(f"{path}: {write(root, path)} pages")
    except chromium.Missing as reason:
        print(f"no PDF was made: {reason}", file=sys.stderr)
        return 3
    except BookError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(Path().resolve()))
