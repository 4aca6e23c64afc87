"""Links to other sites: each that is gone is one line with the pages where it stands."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from iterlin.study import downloads
from iterlin_book import links
from stored_files import write_registry


class Handler(BaseHTTPRequestHandler):
    """A site with `/there`, `/moved`, which leads there, and `/doi`, which leads to a refusal."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):
        leads = {"/moved": "/there", "/doi/here": "/refused"}.get(self.path)
        self.send_response(302 if leads else {"/there": 200, "/refused": 403}.get(self.path, 404))
        if leads:
            self.send_header("Location", leads)
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass


@pytest.fixture
def site(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setattr(links, "AGAIN", links.Retry(0))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture
def book(tmp_path, monkeypatch, site):
    """Writes the one page of a book with those links; the data lie at `/there`."""
    monkeypatch.setattr(downloads, "REGISTRY", tmp_path / "registry.yml")
    write_registry(downloads.REGISTRY, "pictures", {"there": b"content"}, url=f"{site}/")

    def with_links(*addresses, name="index.html"):
        folder = tmp_path / "html"
        folder.mkdir(exist_ok=True)
        text = "".join(f'<a href="{address}">x</a>' for address in addresses)
        bar = f'<div class="article-header-buttons"><a href="{site}/button">x</a></div>'
        (folder / name).write_text(f"<html><body>{bar}{text}</body></html>")
        return folder

    return with_links


def test_links_that_are_answered_pass(book, site, capsys):
    folder = book(f"{site}/there", f"{site}/there#part", f"{site}/moved", "other.html", "#top")
    assert links.main([str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: all 2 links to other sites are answered\n"


def test_links_that_are_gone_are_named_with_their_pages(book, site, capsys):
    book(f"{site}/gone", f"{site}/there")
    folder = book(f"{site}/gone#part", f"{site}/refused", name="other.html")
    assert links.main([str(folder)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"index.html, other.html: {site}/gone: 404 Not Found",
        f"other.html: {site}/refused: 403 Forbidden",
    ]


def test_data_that_moved_away_are_a_problem_too(book, site, capsys):
    write_registry(downloads.REGISTRY, "pictures", {"gone": b"content"}, url=f"{site}/")
    assert links.main([str(book())]) == 1
    assert capsys.readouterr().out == f"registry.yml: {site}/gone: 404 Not Found\n"


def test_a_site_that_only_sends_on_need_not_please_the_publisher(book, site, monkeypatch):
    monkeypatch.setattr(links, "SENDS_ON", (f"{site}/doi",))
    found = links.addresses(book(f"{site}/doi/here", f"{site}/doi/gone"))
    assert list(links.check(found)) == [f"index.html: {site}/doi/gone: 404 Not Found"]


def test_a_site_that_is_not_there_is_a_problem():
    assert links.problem("http://127.0.0.1:1/").endswith("Error")


def test_without_a_book_there_is_nothing_to_ask(tmp_path, capsys):
    assert links.main([str(tmp_path)]) == 2
    assert "make book first" in capsys.readouterr().err
