"""Files are accepted by hash alone; whatever else happens is one clear error."""

import gc
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from iterlin_study.data import downloads
from stored_files import digest, write_registry

CONTENT = bytes(range(256)) * 300  # more than one chunk of a download
NAME = "pictures.gz"


class Handler(BaseHTTPRequestHandler):
    """Gives the server's `answers` in turn, the last one again and again: None is 404."""

    def do_GET(self):
        asked, answers = self.server.asked, self.server.answers
        answer = answers[min(len(asked), len(answers) - 1)]
        asked.append(self.path)
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(answer or b"")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        running.answers, running.asked = [CONTENT], []
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def served(server, tmp_path, monkeypatch):
    """An empty cache of a registry whose one file comes from the server, without a second try."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(downloads, "cache_folder", lambda: folder)
    monkeypatch.setattr(downloads, "RETRIES", 0)
    monkeypatch.setattr(downloads, "REGISTRY", tmp_path / "registry.yml")
    monkeypatch.delenv(downloads.FOLDER_VARIABLE, raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    url = f"http://127.0.0.1:{server.server_port}/"
    write_registry(downloads.REGISTRY, "pictures", {NAME: CONTENT}, url=url)
    return folder


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """An empty folder that ITERLIN_DATA names."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv(downloads.FOLDER_VARIABLE, str(folder))
    return folder


def fails(*parts):
    """Require that fetch raises a DownloadError of one line with all of those parts."""
    with pytest.raises(downloads.DownloadError) as raised:
        downloads.fetch("pictures")
    assert "\n" not in str(raised.value)
    assert all(str(part) in str(raised.value) for part in parts), raised.value


def test_a_file_is_downloaded_once_and_again_where_it_is_damaged(served, server):
    (path,) = downloads.fetch("pictures")
    assert path == served / NAME
    assert path.read_bytes() == CONTENT
    assert downloads.fetch("pictures") == [path]
    assert server.asked == [f"/{NAME}"]
    path.write_bytes(CONTENT[:-1])
    downloads.fetch("pictures")
    assert path.read_bytes() == CONTENT


# Pooch leaves it to the garbage collector to close the connection after an error.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(
    "answer", [CONTENT[:70_000], CONTENT[::-1], None], ids=["interrupted", "other hash", "404"]
)
def test_a_download_that_fails_names_the_remedy_and_leaves_nothing(served, server, answer):
    server.answers = [answer]
    fails(NAME, digest(CONTENT), "http://127.0.0.1", served, "ITERLIN_DATA")
    gc.collect()
    assert not list(served.iterdir())


def test_a_folder_of_data_comes_first_and_files_of_one_name_are_told_apart(served, server, mine):
    assert downloads.fetch("pictures") == [served / NAME]  # it has no such file
    for folder, content in (("another", CONTENT[::-1]), ("right", CONTENT)):
        (mine / folder).mkdir()
        (mine / folder / NAME).write_bytes(content)
    assert downloads.fetch("pictures") == [mine / "right" / NAME]
    assert len(server.asked) == 1


def test_a_wrong_file_in_the_folder_is_an_error(served, server, mine):
    (mine / NAME).write_bytes(CONTENT[::-1])
    fails(f"{mine / NAME}", f"SHA-256 {digest(CONTENT)}", "http://127.0.0.1")
    assert server.asked == []
