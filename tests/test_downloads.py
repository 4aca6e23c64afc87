"""Files are accepted by size and hash alone; whatever else happens is one clear error."""

import re
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from iterlin.study import downloads
from iterlin.study.downloads import DownloadError
from stored_files import digest, write_registry

CONTENT = bytes(range(256)) * 300  # more than one chunk of a download
NAME = "pictures.gz"


class Server(ThreadingHTTPServer):
    """Answers with `answers` in turn, the last one again and again: None is 404, ... is endless."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked = [CONTENT], []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked, answers = self.server.asked, self.server.answers
        answer = answers[min(len(asked), len(answers) - 1)]
        asked.append(self.path)
        self.send_response(404 if answer is None else 200)
        if answer is not ...:
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        with suppress(ConnectionError):
            while answer is ...:
                self.wfile.write(CONTENT)
            self.wfile.write(answer or b"")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, no folder of data, no second try, no proxy in between."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(downloads, "cache_folder", lambda: folder)
    monkeypatch.setattr(downloads, "RETRIES", 0)
    monkeypatch.setattr(downloads, "REGISTRY", tmp_path / "registry.yml")
    monkeypatch.delenv(downloads.FOLDER_VARIABLE, raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    return folder


@pytest.fixture
def served(cache, server):
    """The cache of a registry whose one file comes from the server."""
    url = f"http://127.0.0.1:{server.server_port}/"
    write_registry(downloads.REGISTRY, "pictures", {NAME: CONTENT}, url=url)
    return cache


def fails(*parts):
    """fetch raises a DownloadError of one line with all of those parts."""
    with pytest.raises(DownloadError) as raised:
        downloads.fetch("pictures")
    message = str(raised.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message


def is_empty(folder):
    """Nothing in it: neither the file nor a part of it."""
    return not folder.exists() or not list(folder.iterdir())


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """An empty folder that ITERLIN_DATA names."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv(downloads.FOLDER_VARIABLE, str(folder))
    return folder


def test_the_registry_is_well_formed():
    known = downloads.registry()
    assert sorted(known) == ["cifar10", "cifar10-jpeg", "mnist"]
    assert "lossy" in known["cifar10-jpeg"]["title"]
    for entry in known.values():
        for text in ("title", "description", "citation", "licence"):
            assert entry[text].strip() == entry[text] != ""
        assert entry["examples"]["train"] > entry["examples"]["test"] == 10_000
    files = [file for entry in known.values() for file in entry["files"]]
    assert len({file.name for file in files}) == len(files) == 6
    for file in files:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.url.startswith("https://")
        assert re.fullmatch(r"[\w.-]+\.gz", file.name)


def test_a_file_is_downloaded_once(served, server):
    (path,) = downloads.fetch("pictures")
    assert path == served / NAME
    assert path.read_bytes() == CONTENT
    assert downloads.fetch("pictures") == [path]
    assert server.asked == [f"/{NAME}"]


def test_a_damaged_file_in_the_cache_is_downloaded_again(served):
    served.mkdir()
    (served / NAME).write_bytes(CONTENT[:-1])
    (path,) = downloads.fetch("pictures")
    assert path.read_bytes() == CONTENT


def test_a_failed_download_is_tried_again(served, server, monkeypatch):
    monkeypatch.setattr(downloads, "RETRIES", 1)
    server.answers = [CONTENT[:1000], CONTENT]
    (path,) = downloads.fetch("pictures")
    assert path.read_bytes() == CONTENT
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (CONTENT[:70_000], "the download broke off"),
        (CONTENT[::-1], "what came has another hash"),
        (..., f"the server sends more than its {len(CONTENT)} bytes"),
        (None, "the server answered 404"),
    ],
    ids=["interrupted", "another hash", "endless", "not there"],
)
def test_a_download_that_fails_names_the_remedy_and_leaves_nothing(served, server, answer, fault):
    server.answers = [answer]
    fails(NAME, digest(CONTENT), "http://127.0.0.1", fault, served, "ITERLIN_DATA")
    assert is_empty(served)


def test_no_network(served, server):
    server.shutdown()
    server.server_close()
    fails(NAME, digest(CONTENT), "http://127.0.0.1", "no connection", "ITERLIN_DATA", served)


@pytest.mark.parametrize("below", [".", "sub"])
def test_a_cache_that_cannot_be_used(served, monkeypatch, below):
    served.write_text("a file where the folder should be")
    monkeypatch.setattr(downloads, "cache_folder", lambda: served / below)
    fails(NAME, f"the cache {served / below} cannot be used", "ITERLIN_DATA")


def test_a_folder_of_data_comes_first_and_files_of_one_name_are_told_apart(served, server, mine):
    for folder, content in (("another", CONTENT[::-1]), ("right", CONTENT)):
        (mine / folder).mkdir()
        (mine / folder / NAME).write_bytes(content)
    assert downloads.fetch("pictures") == [mine / "right" / NAME]
    assert server.asked == []
    assert is_empty(served)


def test_what_the_folder_of_data_lacks_is_downloaded(served, mine):
    (mine / NAME).mkdir()  # a folder of that name is not the file
    assert downloads.fetch("pictures") == [served / NAME]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (CONTENT[::-1], f"has SHA-256 {digest(CONTENT[::-1])} instead of"),
        (CONTENT[:50], f"has 50 bytes instead of {len(CONTENT)}"),
        (CONTENT, "cannot be read (Permission denied)"),
    ],
    ids=["hash", "size", "not readable"],
)
def test_a_wrong_file_in_the_folder_is_an_error(served, server, mine, monkeypatch, content, fault):
    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    (mine / NAME).write_bytes(content)
    if content == CONTENT:
        monkeypatch.setattr(downloads.hashlib, "file_digest", refuse)
    fails(f"{mine / NAME} {fault}", "http://127.0.0.1")
    assert server.asked == []


def test_a_folder_of_data_that_does_not_exist(served, server, mine):
    mine.rmdir()
    fails("ITERLIN_DATA", f"{mine}, which is not a folder")
    assert server.asked == []


def test_fetching_ahead_of_time_names_what_is_unknown(served, capsys):
    for names, code in (([], 0), (["pictures"], 0), (["imagenet", "pictures"], 1)):
        assert downloads.main(names) == code
        captured = capsys.readouterr()
        assert captured.out == f"{served / NAME}\n"
        assert ("imagenet" in captured.err) == bool(code)
    with pytest.raises(ValueError, match="'imagenet'; allowed: pictures"):
        downloads.fetch("imagenet")
