"""Where an archive lies: a local folder or a URI that pyarrow knows, and the same place in the words of Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from purgatory_pipeline.errors import ArchiveUnusable

_SPARK_SCHEMES: Final = {"s3": "s3a", "hdfs": "hdfs", "viewfs": "viewfs", "gs": "gs", "gcs": "gs", "abfs": "abfs"}
_GLOB: Final = frozenset("\\*?[]{}")
"""Spark takes these in a path for a pattern, unless each is escaped."""


@dataclass(frozen=True)
class Place:
    """The root folder of an archive. `filesystem` is pyarrow's; it is opened anew in every process that needs it."""

    uri: str
    filesystem: Any
    root: str
    spark_prefix: str

    def spark_path(self, path: str) -> str:
        """What Spark calls the file that pyarrow calls `path`."""
        escaped = "".join(f"\\{letter}" if letter in _GLOB else letter for letter in path)
        return f"{self.spark_prefix}{escaped}"

    def list_files(self) -> list[str]:
        """Paths of all files below the root, sorted. Raises `ArchiveUnusable` when the folder cannot be listed."""
        try:
            found = self.filesystem.get_file_info(fs.FileSelector(self.root, recursive=True))
        except FileNotFoundError:
            raise ArchiveUnusable(f"there is no archive at {self.uri}") from None
        except NotADirectoryError:
            raise ArchiveUnusable(f"{self.uri} is a file: name the folder that --archive was given") from None
        except (OSError, pa.ArrowException) as error:
            raise ArchiveUnusable(f"cannot list {self.uri}: {first_line(error)}") from error
        return sorted(info.path for info in found if info.type == fs.FileType.File)


def open_place(uri: str) -> Place:
    """The place that a path or a URI names. Raises `ArchiveUnusable` for what no file system is known for."""
    if "://" not in uri and not uri.startswith("file:"):
        local = str(Path(uri).expanduser().absolute())
        return Place(uri, fs.LocalFileSystem(), local, "file://")
    try:
        filesystem, root = fs.FileSystem.from_uri(uri)
    except (OSError, pa.ArrowException) as error:
        raise ArchiveUnusable(f"cannot open {uri}: {first_line(error)}") from error
    return Place(uri, filesystem, root.rstrip("/"), _spark_prefix(uri))


def first_line(error: BaseException) -> str:
    """An error's message without the rest of what a library has to say."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _spark_prefix(uri: str) -> str:
    """What goes before pyarrow's path: of an object store that path begins with the bucket, of others with a slash."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return "file://"
    scheme = _SPARK_SCHEMES.get(parts.scheme, parts.scheme)
    return f"{scheme}://" if parts.scheme in {"s3", "gs", "gcs"} else f"{scheme}://{parts.netloc}"
