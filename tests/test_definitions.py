"""A definition's digest follows what it computes and what it reaches, and nothing else."""

import ast
import functools
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import toy_book
from hypothesis import given
from hypothesis import strategies as st
from iterlin.study import definitions, syntax
from iterlin.study.definitions import Library
from iterlin.study.normal_form import Key
from iterlin.study.provenance import PACKAGE

LIBRARY = {
    "__init__.py": "from iterlin.steps import step\n",
    "rates.py": '"""Rates."""\n\nRATE = 0.5\nLIMIT = 10  # steps\nUNUSED = 3\n',
    "errors.py": "_EPSILON = 1e-3\n\n\ndef error(x):\n    return abs(x) + _EPSILON\n",
    "steps.py": '''\
"""Steps."""

from functools import partial

import jax
import numpy as np

from iterlin import rates
from iterlin.rates import LIMIT

_EPSILON = 1e-6
TABLE = {}


def clip(x):
    """Nothing large."""
    if x > LIMIT:
        raise ValueError(f"too large: {x}")
    return np.minimum(x, 1 / _EPSILON)  # nor infinite


@jax.custom_jvp
def smooth(x, power=2):
    return x**power


@smooth.defjvp
def _slope(primals, tangents):
    return 2 * primals[0] * tangents[0]


@partial(jax.jit, static_argnames="count")
def step(x: float, *, count=1) -> float:
    return clip(x - rates.RATE * smooth(x)) * count


def double(x):
    return 2 * x


TABLE["double"] = double


def named(name):
    return TABLE[name]
''',
}
ROOTS = (("steps", "step"), ("steps", "named"), ("errors", "error"))


def changed(new, old=LIBRARY, renamed=()):
    """Which of the roots have another origin: other digests among all that they reach."""
    found = []
    for module, name in ROOTS:
        now = dict(renamed).get((module, name), (module, name))
        sets = []
        for texts, root in ((old, (module, name)), (new, now)):
            library = Library(texts)
            sets.append({library.digest(key) for key in library.reached([Key(*root)])})
        found += [name] if sets[0] != sets[1] else []
    return found


def edited(*edits, texts=LIBRARY):
    """The texts after (file, old, new); each old text is there once, at least."""
    texts = dict(texts)
    for path, old, new in edits:
        assert old in texts[path], old
        texts[path] = texts[path].replace(old, new)
    return texts


SAME = {
    "comment": ("  # nor infinite", "  # at most a million"),
    "docstring": ('"""Nothing large."""', '"""Cut off.\n\n    At the limit.\n    """'),
    "no docstring": ('    """Nothing large."""\n', ""),
    "docstring of the module": ('"""Steps."""\n', ""),
    "a line wrapped": (
        "return np.minimum(x, 1 / _EPSILON)",
        "return np.minimum(\n  x,\n  1 /_EPSILON\n)",
    ),
    "parentheses": ("1 / _EPSILON", "(1) / (_EPSILON)"),
    "spelling of a number": ("1e-6", "0.000_001"),
    "annotation": ("x: float", "x: np.ndarray"),
    "no annotation": (" -> float", ""),
    "text of an error": ('f"too large: {x}"', '"larger than " + str(LIMIT)'),
    "import as another name": ("import rates", "import rates as r"),
    "name of an outside import": ("import numpy as np", "import numpy"),
    "new definition": ("def double", "def triple(x):\n    return 3 * x\n\n\ndef double"),
    "order": ("_EPSILON = 1e-6\nTABLE = {}", "TABLE = {}\n_EPSILON = 1e-6"),
    "constant with an annotation": ("_EPSILON = 1e-6", "_EPSILON: float = 1e-6"),
}
FOLLOWS = {
    "import as another name": ("rates.RATE", "r.RATE"),
    "name of an outside import": ("np.m", "numpy.m"),
}


@pytest.mark.parametrize("change", SAME)
def test_how_it_is_written_does_not_count(change):
    edits = [edit for edit in (SAME[change], FOLLOWS.get(change)) if edit]
    assert changed(edited(*(("steps.py", *edit) for edit in edits))) == []


def test_where_a_definition_lives_and_what_it_is_called_do_not_count():
    rates = LIBRARY["rates.py"]
    module = edited(
        ("steps.py", "from iterlin import rates", "from iterlin.deep import speeds"),
        ("steps.py", "iterlin.rates", "iterlin.deep.speeds"),
        ("steps.py", "rates.RATE", "speeds.RATE"),
    )
    del module["rates.py"]
    assert changed(module | {"deep/__init__.py": "", "deep/speeds.py": rates}) == []

    names = edited(
        ("steps.py", "clip(", "bounded("),
        ("steps.py", "smooth", "power_of"),
        ("steps.py", "_slope", "_rule"),
        ("steps.py", "double(", "twice("),
        ("steps.py", "= double", "= twice"),
        ("steps.py", "named(", "by_name("),
        ("steps.py", "_EPSILON", "_TINY"),
    )
    assert changed(names, renamed={("steps", "named"): ("steps", "by_name")}) == []

    # Into a module that has a private name of its own, equal to one that moves.
    head, _, rest = LIBRARY["steps.py"].partition("_EPSILON = 1e-6\n")
    clip = rest[rest.index("def clip") : rest.index("@jax.custom_jvp")]
    moved = LIBRARY | {
        "steps.py": head.replace("LIMIT", "LIMIT\nfrom iterlin.clips import clip")
        + rest.replace(clip, ""),
        "clips.py": "import numpy as np\nfrom iterlin import rates as r\n_EPSILON = 1e-6\n"
        + clip.replace("LIMIT", "r.LIMIT"),
    }
    assert changed(moved) == []
    assert changed(edited(("clips.py", "1e-6", "1e-7"), texts=moved), old=moved) == ["step"]
    assert changed(edited(("errors.py", "1e-3", "1e-2"), texts=moved), old=moved) == ["error"]


def test_imports_mean_the_same_however_they_are_written():
    styles = {
        "import iterlin.rates\n": "iterlin.rates.RATE",
        "import iterlin\n": "iterlin.rates.RATE",
        "import iterlin.rates as r\n": "r.RATE",
        "from iterlin import rates\n": "rates.RATE",
        "from iterlin.rates import RATE\n": "RATE",
        "from iterlin.rates import RATE as other\n": "other",
        "from iterlin.users import RATE\n": "RATE",  # by way of a module that imports it itself
    }
    digests = set()
    for line, use in styles.items():
        for text in (
            f"{line}def f():\n    return {use}\n",
            f"def f():\n    {line}    return {use}\n",
        ):
            texts = LIBRARY | {"users.py": "from iterlin.rates import RATE\n", "f.py": text}
            library = Library(texts)
            assert Key("rates", "RATE") in library.reached([Key("f", "f")])
            digests.add(library.digest(Key("f", "f")))
    assert len(digests) == 1


OTHER = {
    "constant": ("rates.py", "RATE = 0.5", "RATE = 0.25", ["step"]),
    "constant of the same value and another type": ("rates.py", "10", "10.0", ["step"]),
    "constant that nothing uses": ("rates.py", "UNUSED = 3", "UNUSED = 4", []),
    "operator": ("steps.py", "x - rates", "x + rates", ["step"]),
    "comparison": ("steps.py", "x > LIMIT", "x >= LIMIT", ["step"]),
    "default": ("steps.py", "power=2", "power=3", ["step"]),
    "default of a keyword": ("steps.py", "count=1", "count=2", ["step"]),
    "no default": ("steps.py", "*, count=1", "*, count", ["step"]),
    "decorator": ("steps.py", 'static_argnames="count"', "static_argnums=1", ["step"]),
    "decorator gone": ("steps.py", "@jax.custom_jvp\n", "", ["step"]),
    "rule of a derivative": ("steps.py", "2 * primals", "3 * primals", ["step"]),
    "which rule": ("steps.py", "@smooth.defjvp", "@smooth.defjvps", ["step"]),
    "rule gone": ("steps.py", "@smooth.defjvp\n", "", ["step"]),
    "type of an error": ("steps.py", "ValueError", "TypeError", ["step"]),
    "registered": ("steps.py", "return 2 * x", "return 4 * x", ["named"]),
    "registration": ("steps.py", '["double"]', '["twice"]', ["named"]),
    "registration gone": ("steps.py", 'TABLE["double"] = double\n', "", ["named"]),
    "second registration": (
        "steps.py",
        "= double\n",
        '= double\nTABLE["clip"] = clip\n',
        ["named"],
    ),
    "text": ("steps.py", "return TABLE[name]", 'return TABLE[name or "double"]', ["named"]),
    "private name of another module": ("errors.py", "1e-3", "1e-6", ["error"]),
    "an outside function": ("steps.py", "np.minimum", "np.maximum", ["step"]),
    "another library": ("steps.py", "import numpy as np", "import jax.numpy as np", ["step"]),
    "what an import means": (
        "steps.py",
        "iterlin.rates import LIMIT",
        "iterlin.rates import UNUSED as LIMIT",
        ["step"],
    ),
    "a local import": (
        "errors.py",
        "return abs",
        "from math import fabs as abs\n    return abs",
        ["error"],
    ),
    "effect on the outside": (
        "errors.py",
        "def error",
        "import jax\njax.config.update('x', 1)\n\n\ndef error",
        ["error"],
    ),
}


@pytest.mark.parametrize("change", OTHER)
def test_what_is_computed_counts_for_those_that_reach_it(change):
    *edit, expected = OTHER[change]
    assert changed(edited(edit)) == expected


def test_a_decorator_counts_alike_however_it_is_imported():
    """One that is only called changes what it decorates, not itself nor its other users."""
    for line, use in (
        ("from iterlin.marks import mark", "@mark"),
        ("from iterlin import marks", "@marks.mark"),
        ("from iterlin import marks", "@marks.mark(2)"),
    ):
        texts = {"__init__.py": "", "marks.py": "def mark(f):\n    return f\n"}
        texts["f.py"] = f"{line}\n\n\n{use}\ndef f():\n    return 1\n"
        assert Library(texts).reached([Key("marks", "mark")]) == {Key("marks", "mark")}


def test_a_name_bound_again_still_means_what_was_imported():
    texts = LIBRARY | {"user.py": "from iterlin.errors import error\n\nerror = wrapped(error)\n"}
    assert Key("errors", "_EPSILON") in Library(texts).reached([Key("user", "error")])


def test_definitions_that_call_each_other():
    text = (
        "def even(n):\n    return not n or odd(n - 1)\n\n\n"
        "def odd(n):\n    return bool(n) and even(n - 1)\n"
    )
    one = Library({"parity.py": text})
    moved = text.replace("even", "is_even").replace("odd", "is_odd")
    other = Library({"deep/parity.py": moved})
    pairs = [(Key("parity", n), Key("deep.parity", f"is_{n}")) for n in ("even", "odd")]
    assert [one.digest(a) for a, _ in pairs] == [other.digest(b) for _, b in pairs]
    assert one.digest(pairs[0][0]) != one.digest(pairs[1][0])
    changed = Library({"parity.py": text.replace("bool(n)", "n > 0")})
    assert all(changed.digest(key) != one.digest(key) for key, _ in pairs)


# Names are looked up as Python does. SIZE is a constant of the module.

USES = {
    "plain": "def f():\n return SIZE",
    "default of a parameter of its name": "def f(SIZE=SIZE):\n return SIZE",
    "nested function": "def f():\n def g():\n  return SIZE\n return g",
    "beside a nested function's own": "def f():\n def g(SIZE):\n  return SIZE\n return g(SIZE)",
    "beside a lambda's own": "def f():\n return (lambda SIZE: SIZE)(SIZE)",
    "default of a lambda": "def f():\n return lambda SIZE=SIZE: SIZE",
    "first iterable of a comprehension": "def f():\n return [SIZE for SIZE in SIZE]",
    "after a comprehension": "def f():\n return [SIZE for SIZE in [1]] + [SIZE]",
    "declared global": "def f():\n global SIZE\n SIZE = SIZE + 1",
    "global below a local": "def f(SIZE):\n def g():\n  global SIZE\n  return SIZE\n return g",
    "class attribute of its name": "class f:\n SIZE = SIZE",
    "default in a class": "class f:\n def method(self, SIZE=SIZE):\n  return SIZE",
    "method beside an attribute": "class f:\n SIZE = 2\n def method(self):\n  return SIZE",
    "base class": "class f(base(SIZE)):\n pass",
    "decorator": "@mark(SIZE)\ndef f(SIZE):\n return SIZE",
    "match on a value": "def f(x):\n match x:\n  case other if other == SIZE:\n   return 1",
    "attribute": "def f():\n return SIZE.real",
    "f-string": 'def f():\n return f"{SIZE}"',
    "keyword's value": "def f():\n return g(SIZE=SIZE)",
    "module-level comprehension": "f = [SIZE for other in range(3)]",
}
HIDES = {
    "parameter": "def f(SIZE):\n return SIZE",
    "keyword-only parameter": "def f(*, SIZE):\n return SIZE",
    "starred parameters": "def f(*SIZE, **other):\n return SIZE",
    "assignment after use": "def f():\n print(SIZE)\n SIZE = 1",
    "loop": "def f():\n for SIZE in range(3):\n  print(SIZE)",
    "with": "def f():\n with open('x') as SIZE:\n  print(SIZE)",
    "except": "def f():\n try:\n  g()\n except ValueError as SIZE:\n  print(SIZE)",
    "walrus": "def f():\n if SIZE := 3:\n  return SIZE",
    "walrus in a comprehension": "def f():\n return [SIZE := x for x in range(3)], SIZE",
    "match": "def f(x):\n match x:\n  case [SIZE, *_]:\n   return SIZE",
    "match a star": "def f(x):\n match x:\n  case [_, *SIZE]:\n   return SIZE",
    "match a mapping": "def f(x):\n match x:\n  case {**SIZE}:\n   return SIZE",
    "enclosing function": "def f(SIZE):\n def g():\n  return SIZE\n return g",
    "nonlocal": "def f(SIZE):\n def g():\n  nonlocal SIZE\n  SIZE = 2\n return g",
    "nested function's name": "def f():\n def SIZE():\n  return 1\n return SIZE",
    "nested class's name": "def f():\n class SIZE:\n  pass\n return SIZE",
    "import in the function": "def f():\n from math import pi as SIZE\n return SIZE",
    "comprehension": "def f():\n return [SIZE for SIZE in range(3)]",
    "dict comprehension": "def f():\n return {SIZE: 1 for SIZE in range(3)}",
    "lambda": "f = lambda SIZE: SIZE",
    "class attribute": "class f:\n SIZE = 3\n other = SIZE",
    "keyword": "def f():\n return g(SIZE=3)",
    "attribute's name": "def f(x):\n return x.SIZE",
    "annotation": "def f(x: SIZE) -> SIZE:\n return x",
}


@pytest.mark.parametrize("how", [*USES, *HIDES])
def test_a_local_name_neither_hides_nor_makes_a_dependency(how):
    text = (USES | HIDES)[how]
    compile(text, how, "exec")
    library = Library({"m.py": f"SIZE = 1\n\n\n{text}\n"})
    assert (Key("m", "SIZE") in library.reached([Key("m", "f")])) == (how in USES)


def test_absent_and_none_differ():
    for absent, none in (
        ("def f(*, a):\n    pass", "def f(*, a=None):\n    pass"),
        ("def f(*, a, b=None):\n    pass", "def f(*, a=None, b):\n    pass"),
        ("f = {**g}", "f = {None: g}"),
        ("class f:\n    a: int", "class f:\n    a: int = None"),
        ("class f:\n    a: int = 1", "class f:\n    a: ClassVar[int] = 1"),
    ):
        digests = {Library({"m.py": text}).digest(Key("m", "f")) for text in (absent, none)}
        assert len(digests) == 2, absent


def test_an_exception_that_carries_a_value_is_more_than_its_text():
    digests = {
        Library({"m.py": f"def f(x):\n    raise Stop({value})"}).digest(Key("m", "f"))
        for value in ("x", "x + 1", "'so far: ' + x", "f'so far: {x}'")
    }
    assert len(digests) == 3  # the texts are alike


def test_of_a_module_that_is_handed_around_everything_counts():
    texts = LIBRARY | {
        "user.py": "from iterlin import steps\n\ndef f(n):\n return getattr(steps, n)"
    }
    labels = {key.name for key in Library(texts).reached([Key("user", "f")])}
    assert labels >= {"clip", "step", "double", "named", "LIMIT", "RATE", "_slope"}


def test_a_clock_that_stands_for_pythons_is_written_as_that_one():
    waits = "\n\ndef waits():\n    return time.time() > 3\n"
    clock = {"runtime/__init__.py": "", "runtime/clock.py": "def time():\n    return 1.0\n"}
    steady = waits.replace("time.time", "clock.time")
    digests = {
        Library(texts).digest(Key("waiting", "waits"))
        for texts in (
            {"waiting.py": "import time\n" + waits},
            clock | {"waiting.py": "from iterlin.runtime import clock\n" + steady},
            {**clock, "runtime/clock.py": "def time():\n    return 2.0\n"}
            | {"waiting.py": "from iterlin.runtime import clock\n" + steady},
        )
    }
    assert len(digests) == 1


def test_modules_that_others_hold_to_their_outcome_count_by_what_is_asked_of_them():
    texts = LIBRARY | {"user.py": "from iterlin.errors import error\n\ndef f(x):\n return error(x)"}

    def digest(texts, outcome):
        return Library(texts, {"errors": outcome}).digest(Key("user", "f"))

    before = digest(texts, "hash 1")
    assert digest(edited(("errors.py", "1e-3", "1e-2"), texts=texts), "hash 1") == before
    assert digest(texts, "hash 2") != before


def test_decorators_that_only_say_where_a_definition_is_called_do_not_count():
    plain = "def f(x):\n return x"
    texts = LIBRARY | {"turns.py": "def turn(kept, unrun):\n return lambda f: f\n"}
    imports = "from iterlin.turns import turn\n\ndef unrun(x):\n return None\n\n"

    def library(text, silent=("turns",)):
        return Library(texts | {"user.py": text}, silent=silent)

    def digest(*arguments):
        return library(*arguments).digest(Key("user", "f"))

    decorated = f"{imports}@turn('x', unrun)\n{plain}"
    assert digest(decorated) == digest(plain)
    assert library(decorated).reached([Key("user", "f")]) == {Key("user", "f")}
    # Where they do count, and others beside them.
    assert digest(decorated, ()) != digest(plain)
    other = decorated.replace("@turn", "@unrun\n@turn")
    assert digest(other) == digest(f"{imports}@unrun\n{plain}") != digest(plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from iterlin import gone", "iterlin has no 'gone'"),
        ("from iterlin.rates import gone", r"iterlin\.rates has no 'gone'"),
        ("import iterlin.gone as gone", "iterlin has no module 'gone'"),
        (
            "from iterlin.rates import *",
            r"in full here, not: from iterlin\.rates import \*",
        ),
        ("from .rates import RATE as gone", r"written in full here, not: from \.rates"),
    ],
)
def test_an_import_of_what_is_not_there_is_refused(text, message):
    texts = LIBRARY | {"user.py": f"{text}\n\n\ndef f():\n    return gone\n"}
    with pytest.raises(ValueError, match=message):
        Library(texts).digest(Key("user", "f"))


def test_cells_may_hold_lines_that_only_ipython_understands():
    tree = syntax.parse("%matplotlib inline\n!ls\nx = 1  # %\n")
    assert [ast.unparse(s) for s in tree.body] == ["x = 1"]
    assert ast.unparse(syntax.parse("%%time\ny = 2")) == "y = 2"
    with pytest.raises(SyntaxError):
        syntax.parse("this is (no Python")


# The library itself.


@functools.cache
def real():
    return definitions.read(PACKAGE)


@functools.cache
def real_library():
    return Library(real())


def all_digests(library):
    return {f"{key.module}.{key.name}": library.digest(key) for key in library.everything()}


def test_the_rule_of_the_maximum_is_reached_by_the_network_that_takes_it():
    library = real_library()
    reached = library.reached([Key("networks.convnets", "lenet")])
    names = {library.label(key) for key in reached}
    assert {"_block_max", "_max_over"} <= names  # the rule is in the latter
    assert "_max_over" not in {
        library.label(key) for key in library.reached([Key("networks.mlp", "mlp")])
    }


def test_every_import_of_the_library_is_understood():
    digests = all_digests(real_library())
    assert len(digests) > 400
    assert all(len(digest) == definitions.DIGITS for digest in digests.values())


ELSEWHERE = """
import json, sys
from pathlib import Path
from types import ModuleType
package = Path(sys.argv[1])
for name, folder in (("iterlin", package), ("iterlin.study", package / "study")):
    sys.modules[name] = ModuleType(name)  # without what a package imports: there is no JAX here
    sys.modules[name].__path__ = [str(folder)]
from iterlin.study import definitions
library = definitions.Library(definitions.read(package))
found = {f"{k.module}.{k.name}": library.digest(k) for k in library.everything()}
print(json.dumps([sys.version_info[:2], found]))
"""


def interpreter(version):
    """One of that version which runs, on PATH or among pyenv's; None if there is none."""
    name = f"python{version}"
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/{name}"))
    for found in [shutil.which(name), *map(str, kept)]:
        try:
            if found and not subprocess.run([found, "-c", ""], capture_output=True).returncode:
                return found
        except OSError:
            continue
    return None


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_digests_are_the_same_in_every_version_of_python(version):
    if (python := interpreter(version)) is None:
        pytest.skip(f"no Python {version} here")
    command = [python, "-c", ELSEWHERE, str(PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    used, found = json.loads(done.stdout)
    assert ".".join(map(str, used)) == version
    assert found == all_digests(real_library())


class _Sites(ast.NodeVisitor):
    """Operators, numbers and comparisons of a function that are computed with."""

    def __init__(self):
        self.found = []

    def visit_Raise(self, node):
        pass  # texts

    def visit_arg(self, node):
        pass  # annotations

    def generic_visit(self, node):
        number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
        if number or isinstance(node, ast.BinOp | ast.Compare):
            self.found.append(node)
        super().generic_visit(node)


def mutate(node):
    if isinstance(node, ast.Constant):
        node.value += 1
    elif isinstance(node, ast.BinOp):
        node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
    else:
        node.ops[0] = ast.Gt() if isinstance(node.ops[0], ast.Lt) else ast.Lt()


@functools.cache
def needed_by(path):
    packages = {name for name in real() if name.endswith("__init__.py")}
    return {name: real()[name] for name in toy_book.needed([path]) | packages}


MUTATED = (
    "curvature/gauss_newton.py",
    "spectral_filters.py",
    "networks/convolution.py",
    "infinite_width.py",
)


@given(st.data())
def test_any_mutation_of_a_function_counts_and_its_formatting_does_not(data):
    path = data.draw(st.sampled_from(MUTATED))
    tree = ast.parse(real()[path])
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    function = data.draw(st.sampled_from(functions))
    key = Key(path.removesuffix(".py").replace("/", "."), function.name)
    texts = needed_by(path)

    def digest(tree):
        return Library(texts | {path: ast.unparse(tree)}).digest(key)

    before = real_library().digest(key)
    assert digest(tree) == before
    sites = _Sites()
    sites.visit(function)
    if sites.found:
        mutate(data.draw(st.sampled_from(sites.found)))
        assert digest(tree) != before
