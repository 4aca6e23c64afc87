"""Files are accepted by size and hash alone; whatever else happens is one clear error."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from iterlin.study import downloads
from iterlin.study.downloads import DownloadError
from stored_files import digest, write_registry

CONTENT = bytes(range(256)) * 300  # more than one chunk of a download
NAME = "pictures.gz"


class Server(ThreadingHTTPServer):
    """Answers with `answers` in turn, the last one again and again."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked = [CONTENT], []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked, answers = self.server.asked, self.server.answers
        answer = answers[min(len(asked), len(answers) - 1)]
        asked.append(self.path)
        self.send_response(200 if isinstance(answer, bytes) else 404)
        self.send_header("Content-Length", str(max(len(CONTENT), len(answer or b""))))
        self.end_headers()
        if isinstance(answer, bytes):
            self.wfile.write(answer)

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
    return message


def is_empty(folder):
    """Nothing in it: neither the file nor a part of it."""
    return not folder.exists() or not list(folder.iterdir())


def test_the_registry_is_well_formed():
    known = downloads.registry()
    assert sorted(known) == ["cifar10", "cifar10-jpeg", "mnist"]
    names = []
    for entry in known.values():
        for text in ("title", "description", "citation", "licence"):
            assert entry[text].strip() == entry[text] != ""
        assert entry["examples"]["train"] > entry["examples"]["test"] == 10_000
        for file in entry["files"]:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert file.url.startswith("https://")
            assert re.fullmatch(r"[\w.-]+\.gz", file.name)
            names.append((file.name, file.bytes))
    assert len(set(names)) == len(names) == 6
    assert dict(names)["cifar-10-binary.tar.gz"] == 170_052_171
    assert dict(names)["train-images-idx3-ubyte.gz"] == 9_912_422
    assert "lossy" in known["cifar10-jpeg"]["title"]


def test_a_file_is_downloaded_once(served, server):
    (path,) = downloads.fetch("pictures")
    assert path == served / NAME
    assert path.read_bytes() == CONTENT
    assert downloads.fetch("pictures") == [path]
    assert server.asked == [f"/{NAME}"]
    assert [item.name for item in served.iterdir()] == [NAME]


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


def test_an_interrupted_download_leaves_nothing(served, server):
    server.answers = [CONTENT[:70_000]]
    fails(NAME, digest(CONTENT), "http://127.0.0.1", "the download broke off", served)
    assert is_empty(served)


def test_a_download_with_another_hash_leaves_nothing(served, server):
    server.answers = [CONTENT[::-1]]
    fails(NAME, digest(CONTENT), "http://127.0.0.1", "what came has another hash", "ITERLIN_DATA")
    assert is_empty(served)


def test_a_download_ends_where_it_is_too_long(served, server, monkeypatch):
    """Before it is all there: an endless one would fill the disk."""
    server.answers = [CONTENT * 9]
    kept, stream = [], downloads._stream

    def watched(url, output, pooch, *, most):
        try:
            stream(url, output, pooch, most=most)
        finally:
            kept.append(Path(output).stat().st_size)

    monkeypatch.setattr(downloads, "_stream", watched)
    fails(NAME, f"the server sends more than its {len(CONTENT)} bytes")
    assert max(kept) <= len(CONTENT)
    assert is_empty(served)


def test_a_file_that_the_server_has_not(served, server):
    server.answers = [None]
    fails(NAME, "the server answered 404")
    assert is_empty(served)


def test_no_network(cache, server):
    url = f"http://127.0.0.1:{server.server_port}/"
    write_registry(downloads.REGISTRY, "pictures", {NAME: CONTENT}, url=url)
    server.shutdown()
    server.server_close()
    fails(NAME, digest(CONTENT), url + NAME, "no connection", "ITERLIN_DATA", cache)


@pytest.mark.parametrize("below", [".", "sub"])
def test_a_cache_that_cannot_be_used(served, monkeypatch, below):
    served.write_text("a file where the folder should be")
    monkeypatch.setattr(downloads, "cache_folder", lambda: served / below)
    fails(NAME, f"the cache {served / below} cannot be used", "ITERLIN_DATA")


def test_a_folder_of_data_comes_first(served, server, tmp_path, monkeypatch):
    deep = tmp_path / "mine" / "raw"
    deep.mkdir(parents=True)
    (deep / NAME).write_bytes(CONTENT)
    monkeypatch.setenv("ITERLIN_DATA", str(tmp_path / "mine"))
    assert downloads.fetch("pictures") == [deep / NAME]
    assert server.asked == []
    assert is_empty(served)


def test_what_the_folder_of_data_lacks_is_downloaded(served, tmp_path, monkeypatch):
    monkeypatch.setenv("ITERLIN_DATA", str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / NAME).mkdir()  # a folder of that name is not the file
    assert downloads.fetch("pictures") == [served / NAME]


def test_files_of_one_name_are_told_apart_by_hash(served, server, tmp_path, monkeypatch):
    for folder, content in (("another", CONTENT[::-1]), ("right", CONTENT)):
        (tmp_path / "mine" / folder).mkdir(parents=True)
        (tmp_path / "mine" / folder / NAME).write_bytes(content)
    monkeypatch.setenv("ITERLIN_DATA", str(tmp_path / "mine"))
    assert downloads.fetch("pictures") == [tmp_path / "mine" / "right" / NAME]
    assert server.asked == []


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (CONTENT[::-1], f"has SHA-256 {digest(CONTENT[::-1])} instead of"),
        (CONTENT[:50], f"has 50 bytes instead of {len(CONTENT)}"),
    ],
    ids=["hash", "size"],
)
def test_a_wrong_file_in_the_folder_is_an_error(
    served, server, tmp_path, monkeypatch, content, fault
):
    path = tmp_path / "mine" / NAME
    path.parent.mkdir()
    path.write_bytes(content)
    monkeypatch.setenv("ITERLIN_DATA", str(path.parent))
    fails(f"{path} {fault}", digest(CONTENT), "http://127.0.0.1")
    assert server.asked == []


def test_a_file_that_cannot_be_read_is_an_error(served, server, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / NAME).write_bytes(CONTENT)
    monkeypatch.setenv("ITERLIN_DATA", str(tmp_path / "mine"))
    monkeypatch.setattr(downloads.hashlib, "file_digest", refuse)
    fails(f"{tmp_path / 'mine' / NAME} cannot be read (Permission denied)")
    assert server.asked == []


def test_a_folder_of_data_that_does_not_exist(served, server, tmp_path, monkeypatch):
    monkeypatch.setenv("ITERLIN_DATA", str(tmp_path / "nowhere"))
    message = fails()
    assert message == f"ITERLIN_DATA names {tmp_path / 'nowhere'}, which is not a folder"
    assert server.asked == []


def test_unknown_names_are_refused(served):
    with pytest.raises(ValueError, match="unknown data set to fetch 'imagenet'; allowed: pictures"):
        downloads.fetch("imagenet")


def test_fetching_ahead_of_time(served, server, capsys):
    assert downloads.main([]) == 0
    assert capsys.readouterr().out == f"{served / NAME}\n"
    assert downloads.main(["pictures"]) == 0
    assert capsys.readouterr().out == f"{served / NAME}\n"
    assert downloads.main(["imagenet", "pictures"]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{served / NAME}\n"
    assert captured.err.startswith("imagenet: unknown data set")
