"""A filesystem over a local folder that can be made to fail."""

from typing import Any, Final

from pyarrow import fs

LOCAL: Final = fs.LocalFileSystem()


class FailingDisk(fs.FileSystemHandler):
    """Forwards the archive's requests to a local filesystem, but raises OSError for the actions in `fails`.

    The actions are "write" (opening a file for writing), "move" and "delete". It does not report itself as a local
    filesystem.
    """

    get_file_info = get_file_info_selector = staticmethod(LOCAL.get_file_info)
    open_input_stream = open_input_file = staticmethod(LOCAL.open_input_file)

    def __init__(self) -> None:
        self.fails: set[str] = set()

    def filesystem(self) -> fs.FileSystem:
        """The filesystem as pyarrow expects it."""
        return fs.PyFileSystem(self)

    def _check(self, what: str) -> None:
        if what in self.fails:
            raise OSError(28, "No space left on device")

    def get_type_name(self) -> str:
        return "failing"

    def normalize_path(self, path: str) -> str:
        return path

    def create_dir(self, path: str, recursive: bool) -> None:
        LOCAL.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self._check("delete")
        LOCAL.delete_file(path)

    def move(self, source: str, target: str) -> None:
        self._check("move")
        LOCAL.move(source, target)

    def open_output_stream(self, path: str, metadata: Any) -> Any:  # noqa: ANN401
        self._check("write")
        return LOCAL.open_output_stream(path)

    def _never_asked_for(self, *_: object) -> None:
        raise NotImplementedError

    copy_file = open_append_stream = _never_asked_for
    delete_dir = delete_dir_contents = delete_root_dir_contents = _never_asked_for
