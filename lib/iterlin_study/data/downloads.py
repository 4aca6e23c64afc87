"""Files of image data, by hash: from a folder that already holds them, or downloaded once.

registry.yml lists them. The environment variable ITERLIN_DATA may name a folder to look in first;
what is not there is downloaded into a cache. `python -m iterlin_study.data.downloads [name ...]`
fetches ahead of time, for example on the login node of a cluster whose jobs have no network.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import NamedTuple

import yaml
from iterlin.linearise.validation import check_one_of

REGISTRY = Path(__file__).with_name("registry.yml")
FOLDER_VARIABLE = "ITERLIN_DATA"
RETRIES = 2


class DownloadError(RuntimeError):
    """A data file is missing or damaged; the message names it and the remedy in one line."""


class File(NamedTuple):
    """One file of the registry."""

    name: str
    sha256: str
    url: str


def registry() -> dict[str, dict]:
    """Return each data set's title, description, citation, licence, examples and files (`File`)."""
    entries = yaml.safe_load(REGISTRY.read_text("utf8"))
    return {
        name: {**entry, "files": [File(**file) for file in entry["files"]]}
        for name, entry in entries.items()
    }


def cache_folder() -> Path:
    """Return the folder of downloads: the user's cache folder of the operating system."""
    import pooch  # here: only where a file is checked or may be downloaded

    return Path(pooch.os_cache("iterlin"))


def fetch(name: str) -> list[Path]:
    """Return the paths of a data set's files, verified by SHA-256, in order.

    Raises ValueError for an unknown name and DownloadError for a file that cannot be had. A file
    in the folder ITERLIN_DATA with that name but another content is an error, not downloaded over.
    """
    known = registry()
    check_one_of("data set to fetch", name, known)
    return [_in_folder(file) or _download(file) for file in known[name]["files"]]


def _in_folder(file: File) -> Path | None:
    """Find the file in the folder ITERLIN_DATA, at any depth; None if there is none."""
    import pooch

    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DownloadError(f"{FOLDER_VARIABLE} names {folder}, which is not a folder")
    paths = sorted(folder.rglob(file.name))  # Fashion-MNIST's files bear MNIST's names
    for path in paths:
        if pooch.file_hash(str(path)) == file.sha256:
            return path
    if paths:
        raise DownloadError(
            f"{paths[0]} does not have the SHA-256 {file.sha256}; replace it, or remove it to "
            f"download {file.name} from {file.url}"
        )
    return None


def _download(file: File) -> Path:
    """Download the file into the cache. Pooch names it only when it is whole and has its hash."""
    import pooch

    cache = cache_folder()
    store = pooch.create(
        path=cache,
        base_url="",
        registry={file.name: f"sha256:{file.sha256}"},
        urls={file.name: file.url},
        retry_if_failed=RETRIES,
    )
    downloader = pooch.HTTPDownloader(progressbar=True, chunk_size=2**16, timeout=30)
    try:
        return Path(store.fetch(file.name, downloader=downloader))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DownloadError(
            f"cannot fetch {file.name} (SHA-256 {file.sha256}) from {file.url}: {reason}; put the "
            f"file into the folder that {FOLDER_VARIABLE} names, or into {cache}"
        ) from error


def main(arguments: list[str] | None = None) -> int:
    """Fetch the named data sets (all by default) and print where their files lie."""
    known = registry()
    parser = argparse.ArgumentParser(
        prog="python -m iterlin_study.data.downloads", description=main.__doc__
    )
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(known))
    status = 0
    for name in parser.parse_args(arguments).names or known:
        try:
            for path in fetch(name):
                print(path)
        except (DownloadError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
