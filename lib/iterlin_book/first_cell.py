"""What a downloaded notebook begins with: how to get the library and the project's data.

Cells tagged `remove-cell` are in the notebook and not on the rendered page.
"""

from nbformat.v4 import new_code_cell, new_markdown_cell

_TAGS = {"tags": ["remove-cell"]}
_ID = "installing"

_TEXT = """\
**To run this notebook** take Python 3.11 or newer and a checkout of the project{where}, whose \
`data/results` holds the recorded runs that the pages show. In the checkout:

    pip install ".[study]" jupyter
    jupyter lab

and open the notebook in its folder. Image data (MNIST, CIFAR-10) are downloaded and checked when \
a page first asks for them; `ITERLIN_DATA=folder` names a folder that holds them already. As it \
stands the notebook runs at its *quick* tier, which needs none."""

_CODE = """\
# Where the library is not installed, as on Colab and Binder: get it, with the project's data.
import importlib.util
import os

if importlib.util.find_spec("iterlin") is None:
    !git clone --quiet --depth 1 --branch {branch} {url} {folder}
    %pip install --quiet "./{folder}[study]"
    os.chdir("{folder}")  # pages look for the recorded runs where they are"""


def cells(home):
    """The cells for the project's repository, a `repository.Repository`, or for none."""
    where = "" if home is None else f", `git clone {home.url}`"
    first = [new_markdown_cell(_TEXT.format(where=where), id=_ID, metadata=_TAGS)]
    if home is not None:
        code = _CODE.format(branch=home.branch, url=home.url, folder=home.name)
        first.append(new_code_cell(code, id=f"{_ID}-here", metadata=_TAGS))
    return first
