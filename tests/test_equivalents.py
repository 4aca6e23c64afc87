"""A definition that was rewritten to the same effect stands for the former one, and no further."""

import json
from pathlib import Path

import pytest
import toy_sources
from iterlin.study import equivalents as listed
from iterlin.study import origins, provenance, record_file, records
from iterlin_book import equivalents, freshness
from test_origins import attributes
from toy_sources import SOURCES, edited

# `step` by another way, with a helper of its own, and without the constant that it took.
REWRITTEN = edited(
    ("steps.py", "    return x - RATE * square(x)\n", "    return _less(x, square(x))\n"),
    ("steps.py", "def step(x):", "def _less(x, y):\n    return x - RATE * y\n\n\ndef step(x):"),
)
WITHOUT = edited(("steps.py", "RATE * square(x)", "square(x) / 2"))


def rows_of(now, then=SOURCES):
    """Those that let it stand for what it was, as text."""
    found = equivalents.rows(now, then, {digest for _, digest in origin(then).library})
    return found, equivalents.printed(found, because="the same", shown="tests/test_steps.py::test")


def origin(found):
    return origins.of_page("trial", found)


def changes(found, then=SOURCES):
    return origins.changes(attributes(found=then), found)


def test_without_a_row_it_is_another():
    assert changes(REWRITTEN) == ["new: _less (steps)"]
    assert changes(WITHOUT) == ["changed: step (steps)", "no longer reached: RATE"]


@pytest.mark.parametrize("found", [REWRITTEN, WITHOUT])
def test_with_its_row_nothing_has_changed(found):
    rows, text = rows_of(found)
    assert [definition for definition, _, _ in rows] == ["steps.step"]
    equal = found._replace(equivalents=text)
    if found is REWRITTEN:
        assert changes(equal) == []
    else:  # what the former one alone reached is gone, whatever stands for it
        assert changes(equal) == ["no longer reached: RATE"]
    library = origins.library_of(equal)
    key = next(key for key in library.everything() if key.name == "step")
    assert library.digest(key) == rows[0][2] != library.written(key) == rows[0][1]
    # What rests on it does not see the difference, and what it reaches alone is its own affair.
    assert origin(equal).page == origin(SOURCES).page
    assert "_less" not in dict(origin(equal).library)


def test_a_library_shares_its_forms_with_the_same_one_where_rows_stand():
    _, text = rows_of(REWRITTEN)
    plain = origins.library_of(REWRITTEN)
    standing = origins.library_of(REWRITTEN._replace(equivalents=text))
    for key in plain.everything():
        assert plain.form(key) is standing.form(key)
        assert plain.digest(key) == plain.written(key)
    changed = {key.name for key in plain.everything() if plain.digest(key) != standing.digest(key)}
    assert changed == {"step"}


def test_a_row_ends_where_the_definition_or_what_it_reaches_changes_again():
    _, text = rows_of(REWRITTEN)
    equal = REWRITTEN._replace(equivalents=text)
    for old, new in (("x - RATE * y", "x + RATE * y"), ("_less(x, square(x))", "_less(x, x)")):
        assert changes(edited(("steps.py", old, new), found=equal))
    assert changes(edited(("steps.py", "RATE = 0.5", "RATE = 0.25"), found=equal)) == [
        "changed: RATE (steps)"
    ]


def test_rows_of_several_rest_on_each_other():
    """First what the others reach, so that their own digests are told with it in its place."""
    both = edited(
        ("steps.py", "    return x**power\n", "    return jax.numpy.power(x, power)\n"),
        found=REWRITTEN,
    )
    rows, text = rows_of(both)
    assert [definition for definition, _, _ in rows] == ["steps.square", "steps.step"]
    assert changes(both._replace(equivalents=text)) == []
    # One of them alone is not enough.
    for kept in (rows[:1], rows[1:]):
        text = equivalents.printed(kept, because="the same", shown="a test")
        assert changes(both._replace(equivalents=text))


def test_a_chain_of_rows_leads_to_the_first():
    _, text = rows_of(REWRITTEN)
    before = REWRITTEN._replace(equivalents=text)
    again = edited(("steps.py", "_less(x, square(x))", "_less(x, y=square(x))"), found=before)
    rows, more = rows_of(again, before)
    assert rows[0][2] == rows_of(REWRITTEN)[0][0][2]
    assert changes(again._replace(equivalents=more)) == []


def test_what_was_made_by_rewritten_code_is_of_it_and_not_of_the_former():
    """A row that proves wrong goes, with what it was for: what was made meanwhile is stale."""
    _, text = rows_of(REWRITTEN)
    equal = REWRITTEN._replace(equivalents=text)
    assert changes(equal, then=equal) == []
    line = "no longer stands for the former one: step"
    assert line in changes(SOURCES, then=equal)
    assert line in changes(REWRITTEN, then=equal)
    assert "rewritten" not in json.loads(origin(SOURCES).attributes()["definitions"])


def test_what_acts_on_a_definition_below_still_counts():
    _, text = rows_of(REWRITTEN)
    equal = REWRITTEN._replace(equivalents=text)
    acting = "effect on square"
    assert acting in dict(origin(equal).library)
    for then in (SOURCES, equal):
        changed = edited(("steps.py", "return 2 *", "return 3 *"), found=equal)
        assert changes(changed, then=then) == [f"changed: {acting} (steps)"]
        more = edited(
            ("steps.py", "def _less(", "square.defjvps(None, None)\n\n\ndef _less("), found=equal
        )
        assert changes(more, then=then) == [f"changed: {acting} (steps)"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "not valid YAML"),
        ("a: b", "expected a list of rows"),
        ("- definition: step", "a row has because, definition, is, shown by, was"),
        ("- {definition: a, is: 123, was: b, because: c, shown by: d}", "all of a row is text"),
        ("- {definition: a, is: b, was: c, because: '', shown by: d}", "all of a row is text"),
        (2 * "- {definition: a, is: b, was: c, because: e, shown by: d}\n", "two rows for is b"),
    ],
)
def test_what_is_no_list_of_rows_is_refused(text, problem):
    with pytest.raises(ValueError, match=rf"data/results/equivalents\.yml: {problem}"):
        listed.rows(text)
    # It makes records stale, with the reason.
    [line] = changes(SOURCES._replace(equivalents=text))
    assert problem in line


def test_executed_pages_are_of_the_text_itself(tmp_path):
    """Rows are for what takes hours: a page of the book simply runs again."""
    _, text = rows_of(REWRITTEN)
    sources = ["from iterlin.steps import step\nstep(1)"]
    digests = []
    for name, found in (
        ("a", SOURCES),
        ("b", REWRITTEN),
        ("c", REWRITTEN._replace(equivalents=text)),
    ):
        root = toy_sources.write(tmp_path / name, found)
        digests.append(freshness.reached(root, sources)[0])
    assert digests[0] != digests[1] == digests[2]


# The project's own.
ROOT = provenance.project_root()
ROWS = listed.rows(origins.sources(ROOT).equivalents)


def test_each_row_is_of_a_definition_that_a_record_reached_and_of_a_test_that_there_is():
    found = origins.sources(ROOT)
    library = origins.library_of(found)
    written = {f"{key.module}.{key.name}": library.written(key) for key in library.everything()}
    held = set()
    for path in freshness.recorded(ROOT):
        definitions = json.loads(record_file.texts(path)["definitions"])
        held |= {digest for _, digest in definitions["library"]}
    for row in ROWS:
        assert written[row["definition"]] == row["is"], row
        assert row["was"] in held, row
        for shown in row["shown by"].split():
            path, _, test = shown.partition("::")
            assert f"def {test}(" in (ROOT / path).read_text("utf8"), row
    assert len({row["definition"] for row in ROWS}) == len(ROWS)


def test_the_command_prints_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(toy_sources.write(tmp_path, SOURCES))
    commit = toy_sources.commit(tmp_path)
    from iterlin.study.page import Page

    Page("trial", {"tier": "laptop", "num_seeds": 3, "periods": (5, 20)}).save(
        toy_sources.results()
    )
    toy_sources.write(tmp_path, REWRITTEN)
    assert equivalents.main([commit, "--root", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said == equivalents.printed(rows_of(REWRITTEN)[0])
    assert equivalents.main(["gone", "--root", str(tmp_path)]) == 2
    assert "no commit: gone" in capsys.readouterr().err
    (tmp_path / Path(listed.PATH)).write_text(rows_of(REWRITTEN)[1], "utf8")
    assert not records.is_stale(records.load("trial", "laptop"))
