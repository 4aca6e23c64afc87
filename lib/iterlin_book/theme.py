"""Sphinx extension: buttons that lead to the repository, where `_config.yml` names one, and MathJax
on every page, since the side bar has formulas in titles.

The theme's own buttons take the built notebooks for the files of the repository, whose pages are
Markdown, and know one branch: pages are edited on one and launched from another.
"""

from iterlin_book import repository

_AFTER_THE_THEME = 502  # which adds its buttons at 501


def setup(app):
    app.add_config_value("repository_url", "", "html", types=[str])
    app.add_config_value("repository_branch", "main", "html", types=[str])
    app.set_html_assets_policy("always")
    app.connect("html-page-context", _add, priority=_AFTER_THE_THEME)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _add(app, page, template, context, doctree):
    home = repository.parse(app.config.repository_url, app.config.repository_branch)
    if home is not None and doctree is not None:  # the search and the indices are no pages
        context["header_buttons"] += groups(home, page)


def groups(home, page):
    """The two groups of buttons of a page, as the theme's templates take them."""
    launch = [
        _link("Colab", home.colab(page), "Run it on Colab", "_static/images/logo_colab.png"),
        _link("Binder", home.binder(page), "Run it on Binder", "_static/images/logo_binder.svg"),
    ]
    source = [
        _link("Repository", home.url, "The project's repository", "fab fa-github"),
        _link("Issue", home.issue(page), "Open an issue about this page", "fas fa-lightbulb"),
        _link("Edit this page", home.edit(page), "Suggest a change", "fas fa-pencil-alt"),
    ]
    return [
        _group("launch-buttons", "Launch this page", "fas fa-rocket", launch),
        _group("source-buttons", "Source of this page", "fab fa-github", source),
    ]


def _link(text, url, tooltip, icon):
    label = f"{text.split()[0].lower()}-button"
    return dict(type="link", text=text, url=url, tooltip=tooltip, icon=icon, label=label)


def _group(label, tooltip, icon, buttons):
    return dict(type="group", label=label, tooltip=tooltip, icon=icon, buttons=buttons)
