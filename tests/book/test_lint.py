"""The style check reads the pages' cells, names page and line, and mends cells in place."""

from iterlin_book import lint
from toy_book import ROOT

PAGE = """# A page

```{code-cell} python
:tags: [hide-input]
%matplotlib inline
import os
x = [1,2]
```

```{code-cell} python
---
mystnb:
  figure:
    caption: "{code-cell}"
---
print(x, y)
```
"""


def book(root, page):
    (root / "book").mkdir()
    (root / "book" / "page.md").write_text(page)
    (root / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return root


def test_the_style_check_names_page_and_line_and_mends_pages_in_place(tmp_path, capsys):
    root = book(tmp_path, PAGE)
    assert lint.main(root, fix=False) == 1
    told = [line.split(": ", 1) for line in capsys.readouterr().out.splitlines()]
    assert [(where, what.split()[0]) for where, what in told] == [
        ("book/page.md:6", "I001"),
        ("book/page.md:6", "F401"),
        ("book/page.md:16", "F821"),
        ("book/page.md:5", "this"),
    ]
    assert lint.main(root, fix=True) == 1
    assert capsys.readouterr().out.startswith("book/page.md:15: F821")
    wanted = PAGE.replace("import os\n", "").replace("[1,2]", "[1, 2]")
    found = (root / "book" / "page.md").read_text()
    assert found.replace("inline\n\n", "inline\n") == wanted


def test_a_cell_that_does_not_parse_is_named(tmp_path, capsys):
    assert lint.main(book(tmp_path, PAGE.replace("x = [1,2]", "x = (1")), fix=False) == 1
    assert "book/page.md:7: invalid-syntax" in capsys.readouterr().out
