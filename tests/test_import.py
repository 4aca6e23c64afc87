"""`import iterlin` is quick, and editors see the names that it exports."""

import ast
import subprocess
import sys
from pathlib import Path

import iterlin


def test_names_are_loaded_on_first_use():
    code = """if True:
        import sys, iterlin
        assert set(iterlin.__all__) <= set(dir(iterlin)) and not hasattr(iterlin, "nothing")
        assert iterlin_study and "jax" not in sys.modules
        from iterlin import train
        assert train is iterlin.train and iterlin.training.losses.mean and "jax" in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_stub_lists_the_names_that_are_exported():
    tree = ast.parse(Path(iterlin.__file__).with_suffix(".pyi").read_text("utf8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    told = {alias.name: node.module for node in imports for alias in node.names}
    assert told.pop("losses") == "iterlin"  # a module
    assert told == {name: f"iterlin.{module}" for name, module in iterlin._EXPORTS.items()}
