"""Files of image data, by hash: from a folder that already holds them, or downloaded once.

registry.yml lists them. The environment variable ITERLIN_DATA may name a folder to look in first;
what is not there is downloaded into a cache. `python -m iterlin_study.data.downloads [name ...]`
fetches ahead of time, for example on the login node of a cluster whose jobs have no network.
"""

import argparse
import hashlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

import yaml
from iterlin.linearise.validation import check_one_of
from tqdm import tqdm

REGISTRY = Path(__file__).with_name("registry.yml")
FOLDER_VARIABLE = "ITERLIN_DATA"
RETRIES = 2


class DownloadError(RuntimeError):
    """A data file is missing or damaged; the message names it and the remedy in one line."""


class File(NamedTuple):
    """One file of the registry; bytes is its size."""

    name: str
    sha256: str
    bytes: int
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
    import pooch  # here, like requests below: only where something may be downloaded

    return Path(pooch.os_cache("iterlin"))


def fetch(name: str) -> list[Path]:
    """Return the paths of a data set's files, verified by size and SHA-256, in order.

    Raises ValueError for an unknown name and DownloadError for a file that cannot be had. A file
    in the folder ITERLIN_DATA with that name but another content is an error, not downloaded over.
    """
    known = registry()
    check_one_of("data set to fetch", name, known)
    return [_in_folder(file) or _download(file) for file in known[name]["files"]]


def _in_folder(file: File) -> Path | None:
    """Find the file in the folder ITERLIN_DATA, at any depth; None if there is none."""
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DownloadError(f"{FOLDER_VARIABLE} names {folder}, which is not a folder")
    faults = []
    for path in sorted(folder.rglob(file.name)):  # Fashion-MNIST's files bear MNIST's names
        fault = _fault(path, file)
        if fault is None:
            return path
        faults.append(f"{path} {fault}")
    if faults:
        raise DownloadError(
            f"{faults[0]}; replace it, or remove it to download {file.name} from {file.url}"
        )
    return None


def _fault(path: Path, file: File) -> str | None:
    """Say what is wrong with a copy of the file; None if nothing."""
    size = path.stat().st_size
    if size != file.bytes:
        return f"has {size} bytes instead of {file.bytes} (SHA-256 {file.sha256})"
    with open(path, "rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    return None if found == file.sha256 else f"has SHA-256 {found} instead of {file.sha256}"


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
    try:
        return Path(store.fetch(file.name, downloader=_stream))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DownloadError(
            f"cannot fetch {file.name} (SHA-256 {file.sha256}) from {file.url}: {reason}; put the "
            f"file into the folder that {FOLDER_VARIABLE} names, or into {cache}"
        ) from error


def _stream(url, output_file, _):
    """Download as Pooch does, but close the connection after an error."""
    import requests

    with requests.get(url, stream=True, timeout=30) as response:
        response.raise_for_status()
        size = int(response.headers.get("Content-Length", 0)) or None
        with open(output_file, "wb") as written, tqdm(total=size, unit="B", unit_scale=True) as bar:
            for chunk in response.iter_content(2**16):
                written.write(chunk)
                bar.update(len(chunk))


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
