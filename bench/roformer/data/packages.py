"""Download Debian packages and the sdist of a PyPI package, and unpack them. Needs no root.

Each package goes to `folder/NAME`; `folder/sources.json` records version and SHA-256. The variable
ROPE_ARRAY_STUDY_DATA names a folder of unpacked packages that replaces the download.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote

DEBIAN = ("coreutils", "gcc-12-locales", "gettext", "gimp-data", "git", "perl-doc", "wordnet-base")
VADER = "vaderSentiment"
VADER_VERSION = "3.3.2"
VADER_SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
NAMES = (*DEBIAN, VADER)
VARIABLE = "ROPE_ARRAY_STUDY_DATA"


@dataclass(frozen=True)
class Source:
    """A downloaded package, for the record of results."""

    package: str
    version: str
    sha256: str


class FetchError(RuntimeError):
    """A package that cannot be had, with the reason and the remedy."""


def fetch(names: tuple[str, ...], folder: Path) -> dict[str, Path]:
    """Return the folder of each unpacked package. Download the packages that `folder` lacks."""
    if chosen_folder := os.environ.get(VARIABLE):
        return _find(names, Path(chosen_folder))
    if missing := [name for name in names if not (folder / name).is_dir()]:
        _download(missing, folder)
    return {name: folder / name for name in names}


def sources(folder: Path) -> list[Source]:
    """Return the record of the packages in `folder`, or in the folder that replaces it."""
    path = _record(Path(os.environ.get(VARIABLE, folder)))
    return [Source(**fields) for fields in json.loads(path.read_text())] if path.exists() else []


def _download(names: list[str], folder: Path) -> None:
    """Download all, then unpack one after the other into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    debian = [name for name in names if name != VADER]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as scratch:
        archives = _download_debian(debian, Path(scratch)) if debian else {}
        if VADER in names:
            archives[VADER] = _download_vader(Path(scratch))
        for name, archive in archives.items():
            _unpack(name, archive, Path(scratch), folder)


def _find(names: tuple[str, ...], folder: Path) -> dict[str, Path]:
    missing = [name for name in names if not (folder / name).is_dir()]
    if missing:
        raise FetchError(f"{VARIABLE} is {folder}, which lacks the folders {', '.join(missing)}")
    return {name: folder / name for name in names}


def _download_debian(names: list[str], scratch: Path) -> dict[str, Path]:
    """Return the .deb of each name, by apt-get with lists and caches of its own."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise FetchError(
                f"{tool} is missing. Run on Debian or Ubuntu, or set {VARIABLE} to a folder with the "
                f"unpacked packages {', '.join(names)}"
            )
    for name in ("lists", "archives", "debs"):
        (scratch / name / "partial").mkdir(parents=True)
    _apt_get(scratch, "update")
    _apt_get(scratch, "download", *names)
    return {name: next((scratch / "debs").glob(f"{name}_*.deb")) for name in names}


def _apt_get(scratch: Path, *arguments: str) -> None:
    settings = {
        "Dir::State": scratch,
        "Dir::State::lists": scratch / "lists",
        "Dir::Cache": scratch,
        "APT::Sandbox::User": "",  # as root, apt would download as a user who cannot write here
        "Debug::NoLocking": "true",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    _run(["apt-get", "-q", *options, *arguments], scratch / "debs")


def _download_vader(scratch: Path) -> Path:
    """Return the sdist. pip checks its hash before it runs the package's setup.py for metadata."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{VADER}=={VADER_VERSION} --hash=sha256:{VADER_SHA256}\n")
    options = ["--quiet", "--no-deps", "--no-binary", VADER, "--dest", str(scratch)]
    _run([sys.executable, "-m", "pip", "download", *options, "-r", str(requirements)], scratch)
    return scratch / f"{VADER}-{VADER_VERSION}.tar.gz"


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip()
        raise FetchError(f"{Path(command[0]).name} failed. The study was run on Debian 12. Reason: {reason}")


def _unpack(name: str, archive: Path, scratch: Path, folder: Path) -> None:
    """Unpack in scratch, record, then rename: a folder with the package's name is complete."""
    target = scratch / name
    if archive.suffix == ".deb":
        _run(["dpkg-deb", "-x", str(archive), str(target)], scratch)
    else:
        _unpack_tar(archive, target)
        for inner in target.rglob("*.tar.gz"):
            _unpack_tar(inner, inner.parent)
    _write_record(folder, Source(name, _version(archive), hashlib.sha256(archive.read_bytes()).hexdigest()))
    target.rename(folder / name)


def _unpack_tar(archive: Path, target: Path) -> None:
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.2 has none
    with tarfile.open(archive) as tar:
        tar.extractall(target, **options)


def _version(archive: Path) -> str:
    """Return the version in a file name: NAME_VERSION_ARCHITECTURE.deb or NAME-VERSION.tar.gz."""
    if archive.suffix == ".deb":
        return unquote(archive.name.split("_")[1])
    return archive.name.removesuffix(".tar.gz").rpartition("-")[2]


def _record(folder: Path) -> Path:
    return folder / "sources.json"


def _write_record(folder: Path, source: Source) -> None:
    kept = [kept_source for kept_source in sources(folder) if kept_source.package != source.package]
    records = sorted([*kept, source], key=lambda record: record.package)
    path = _record(folder)
    path.with_suffix(".part").write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n")
    path.with_suffix(".part").replace(path)
