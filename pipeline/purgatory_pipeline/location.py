"""The location of an archive or a result: a local folder or a URI, under its names in pyarrow and in Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from purgatory_pipeline.errors import ArchiveUnusable

_SPARK_SCHEMES: Final = {"file": "file", "s3": "s3a", "gs": "gs", "gcs": "gs", "hdfs": "hdfs", "viewfs": "viewfs"}
"""Spark's names for pyarrow's file systems."""
_BUCKETS: Final = frozenset({"s3", "gs", "gcs"})
"""With these, pyarrow's path begins with the bucket; with others with a slash."""
_GLOB: Final = frozenset("\\*?[]{}")
"""Unless they are escaped, these characters make Spark treat a path as a pattern."""


@dataclass(frozen=True)
class Location:
    """The root folder of an archive. `filesystem` is pyarrow's; every process that needs it opens its own."""

    uri: str
    filesystem: Any
    root: str
    spark_prefix: str

    def child(self, name: str) -> "Location":
        """The folder or file `name` below this one. A query in the URI (`?endpoint_override=...`) is kept."""
        before, mark, query = self.uri.partition("?") if "://" in self.uri else (self.uri, "", "")
        return replace(self, uri=f"{before.rstrip('/')}/{name}{mark}{query}", root=f"{self.root}/{name}")

    @property
    def spark_uri(self) -> str:
        """Spark's name for this place where Spark expects no pattern, as for a checkpoint or an output folder."""
        return f"{self.spark_prefix}{self.root}"

    def spark_path(self, path: str) -> str:
        """Spark's name for the file that pyarrow calls `path`, as a pattern that matches only this file."""
        escaped = "".join(f"\\{letter}" if letter in _GLOB else letter for letter in path)
        return f"{self.spark_prefix}{escaped}"

    def path_of(self, spark_name: str) -> str:
        """Pyarrow's name for a file that Spark has listed below this location: the inverse of `spark_uri`."""
        scheme, _, rest = spark_name.partition(":")
        rest = rest.lstrip("/")
        if scheme == "file":  # Hadoop writes file:/path
            return f"/{rest}"
        return rest if self.spark_prefix.endswith("://") else f"/{rest.partition('/')[2]}"

    def read(self, path: str = "") -> bytes:
        """The content of the file that pyarrow calls `path`; without one, of this location. Raises OSError."""
        with self.filesystem.open_input_stream(path or self.root) as stream:
            octets: bytes = stream.read()
            return octets

    def exists(self) -> bool:
        return bool(self.filesystem.get_file_info(self.root).type != fs.FileType.NotFound)

    def names(self) -> list[str]:
        """The names of the files and folders in this folder, sorted; none where it does not exist."""
        infos = self.filesystem.get_file_info(fs.FileSelector(self.root, allow_not_found=True))
        return sorted(info.base_name for info in infos)

    def last_number(self) -> int | None:
        """The highest number among the names in this folder: of a checkpoint's `offsets` or `commits`, the last
        micro-batch that was started or committed. None without any.
        """
        return max((int(name) for name in self.names() if name.isdigit()), default=None)

    def list_files(self) -> list[str]:
        """Paths of all files below the root, sorted. Raises `ArchiveUnusable` when the folder cannot be listed."""
        try:
            found = self.filesystem.get_file_info(fs.FileSelector(self.root, recursive=True))
        except FileNotFoundError:
            raise ArchiveUnusable(f"there is no archive at {self.uri}") from None
        except NotADirectoryError:
            raise ArchiveUnusable(f"{self.uri} is a file: give the folder passed to --archive") from None
        except (OSError, pa.ArrowException) as error:
            raise ArchiveUnusable(f"cannot list {self.uri}: {first_line(error)}") from error
        return sorted(info.path for info in found if info.type == fs.FileType.File)


def open_location(uri: str) -> Location:
    """The location that a path or URI names. Raises `ArchiveUnusable` when no file system fits.

    Spark's s3a: is s3: to pyarrow; both are accepted.
    """
    if "://" not in uri and not uri.startswith("file:"):
        local = str(Path(uri).expanduser().absolute())
        return Location(uri, fs.LocalFileSystem(), local, "file://")
    scheme = urlsplit(uri).scheme.lower()
    plain = "s3" if scheme in {"s3a", "s3n"} else scheme
    if plain not in _SPARK_SCHEMES:
        known = ", ".join(sorted(_SPARK_SCHEMES))
        raise ArchiveUnusable(f"cannot open {uri}: the scheme must be one of {known}")
    try:
        filesystem, root = fs.FileSystem.from_uri(plain + uri[len(scheme) :])
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ArchiveUnusable(f"cannot open {uri}: {first_line(error)}") from error
    return Location(uri, filesystem, root.rstrip("/"), spark_prefix(plain, urlsplit(uri).netloc))


def spark_prefix(scheme: str, host: str) -> str:
    """The prefix that turns pyarrow's path into Spark's name for a file."""
    spark_scheme = _SPARK_SCHEMES[scheme]
    return f"{spark_scheme}://" if scheme in _BUCKETS | {"file"} else f"{spark_scheme}://{host}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message; libraries often add many more."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Raises `ArchiveUnusable` where a file of an archive cannot be read."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ArchiveUnusable(f"cannot read {path}: {first_line(error)}; move it out of the archive") from error


def open_output(out: str) -> Location:
    """Creates the folder `out`. Raises `ArchiveUnusable` where it cannot be written to."""
    place = open_location(out)
    try:
        place.filesystem.create_dir(place.root, recursive=True)
        write_file(place, ".probe", b"purgatory")
        place.filesystem.delete_file(f"{place.root}/.probe")
    except (OSError, pa.ArrowException) as error:
        raise ArchiveUnusable(f"cannot write to {out}: {first_line(error)}") from error
    return place


def write_file(place: Location, name: str, content: bytes) -> str:
    """Writes a file below the folder and returns its path."""
    path = f"{place.root}/{name}"
    if "/" in name:
        place.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
    with place.filesystem.open_output_stream(path) as stream:
        stream.write(content)
    return path


def attempt_name(name: str) -> str:
    """The name under which an attempt of a task writes a file, before it renames it to `name`. Readers ignore it."""
    # Not the attempt's number: the attempts of two applications may run at the same time, with the same numbers.
    return f"_{name}-{uuid4().hex}"
