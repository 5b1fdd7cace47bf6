"""A filesystem over a local folder that can be told to fail."""

from typing import Any

from pyarrow import fs


class FailingDisk(fs.FileSystemHandler):
    """Passes everything on to a local filesystem, but raises OSError for what `fails` names.

    "write": opening a file for writing; "move"; "delete". It is no local filesystem to those who ask.
    """

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.written = 0
        self._local = fs.LocalFileSystem()

    def filesystem(self) -> fs.FileSystem:
        """As pyarrow takes it."""
        return fs.PyFileSystem(self)

    def _check(self, what: str) -> None:
        if what in self.fails:
            raise OSError(28, "No space left on device")

    def get_type_name(self) -> str:
        return "failing"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:  # noqa: ANN401
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:  # noqa: ANN401
        return self._local.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self._check("delete")
        self._local.delete_file(path)

    def move(self, source: str, target: str) -> None:
        self._check("move")
        self._local.move(source, target)

    def open_input_stream(self, path: str) -> Any:  # noqa: ANN401
        return self._local.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:  # noqa: ANN401
        return self._local.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:  # noqa: ANN401
        self._check("write")
        self.written += 1
        return self._local.open_output_stream(path)

    def open_append_stream(self, path: str, metadata: Any) -> Any:  # noqa: ANN401
        raise NotImplementedError

    def copy_file(self, source: str, target: str) -> None:
        raise NotImplementedError

    def delete_dir(self, path: str) -> None:
        raise NotImplementedError

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError
