"""Build the documentation as a site: `python docs/build_site.py FOLDER` writes FOLDER/site. FOLDER is new or empty.

Zensical builds a copy of the pages, in FOLDER/docs. The copy has the reference of the API, which is made from the
comments of the contract, and no links into the source tree, which is not part of the site. The site also has each page
as Markdown, with the same path and `.md`, and llms.txt, which lists them for programs.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib import resources
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT: Final = Path(__file__).resolve().parent.parent
Comments = dict[tuple[int, ...], str]


def main(folder: Path) -> int:
    """Build the site. Returns the exit code of Zensical, which is 1 after a warning, such as a dead link."""
    pages = folder / "docs"
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in pages.rglob("*.md"):
        up = "../" * len(page.relative_to(pages).parts)
        page.write_text(without_links(page.read_text("utf-8"), up), encoding="utf-8")
    (pages / "api.md").write_text(api_reference(), encoding="utf-8")
    shutil.copy(ROOT / "zensical.toml", folder)
    build = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(folder / "zensical.toml")]
    code = subprocess.run(build, check=False).returncode  # noqa: S603 - a fixed command
    for page in pages.rglob("*.md"):
        shutil.copy(page, folder / "site" / page.relative_to(pages))
    (folder / "site" / "llms.txt").write_text(page_list(), encoding="utf-8")
    return code


def page_list() -> str:
    """The navigation as llms.txt (llmstxt.org), whose links lead to the pages as Markdown."""
    project = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}"]
    for title, entries in (item for part in project["nav"] for item in part.items()):
        lines += ["", f"## {title}", ""]
        for entry in [{title: entries}] if isinstance(entries, str) else entries:
            lines += [f"- [{name}]({page})" for name, page in entry.items()]
    return "\n".join(lines) + "\n"


def without_links(markdown: str, up: str) -> str:
    """Replace links that lead above the documentation, by the path `up`, or to a program, with their texts."""
    return re.sub(rf"!?\[([^\]]*)\]\((?:{re.escape(up)}[^)]*|[\w/]+\.py)\)", r"\1", markdown)


def api_reference() -> str:
    """Each call, message and enumeration with its comment, as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "contract"
        sources = sorted(str(path) for path in (ROOT / "proto").rglob("*.proto"))
        well_known = str(resources.files("grpc_tools") / "_proto")
        arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}", "--include_source_info", f"-o{compiled}"]
        if protoc.main([*arguments, *sources]) != 0:
            raise ValueError("the contract does not compile")
        contract = FileDescriptorSet.FromString(compiled.read_bytes())
    lines = [
        "# API",
        "",
        "Made from the comments of the contract, in `proto/`. Every call is served by gRPC, and over HTTP as JSON, in",
        "which fields have the names of the column *JSON* (either name is accepted).",
        "",
    ]
    for file in contract.file:
        lines += _file_lines(file)
    return "\n".join(lines)


def _file_lines(file: FileDescriptorProto) -> list[str]:
    comments = {
        tuple(one.path): _text(one.leading_comments or one.trailing_comments) for one in file.source_code_info.location
    }
    lines = [f"## {file.name}", ""]
    for number, service in enumerate(file.service):
        lines += [f"### {service.name}", "", comments.get((6, number), ""), ""]
        for at, call in enumerate(service.method):
            takes, gives = (name.rpartition(".")[2] for name in (call.input_type, call.output_type))
            takes, gives = "stream " * call.client_streaming + takes, "stream " * call.server_streaming + gives
            lines += [f"#### {call.name}", "", f"`{takes}` → `{gives}`", "", comments.get((6, number, 2, at), ""), ""]
    for number, message in enumerate(file.message_type):
        lines += _message_lines(message, (4, number), comments)
    for number, enum in enumerate(file.enum_type):
        lines += [f"### {enum.name}", "", comments.get((5, number), ""), "", "| value | number | |", "|---|---|---|"]
        lines += [
            f"| `{value.name}` | {value.number} | {_cell(comments.get((5, number, 2, at), ''))} |"
            for at, value in enumerate(enum.value)
        ]
        lines.append("")
    return lines


def _message_lines(message: DescriptorProto, path: tuple[int, ...], comments: Comments) -> list[str]:
    lines = [f"### {message.name}", "", comments.get(path, ""), ""]
    if message.field:
        lines += ["| field | JSON | number | type | |", "|---|---|---|---|---|"]
    for at, field in enumerate(message.field):
        kind = field.type_name.rpartition(".")[2] or FieldDescriptorProto.Type.Name(field.type)[5:].lower()
        kind = "repeated " * (field.label == field.LABEL_REPEATED) + kind
        about = _cell(comments.get((*path, 2, at), ""))
        lines.append(f"| `{field.name}` | `{field.json_name}` | {field.number} | `{kind}` | {about} |")
    lines.append("")
    for at, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            lines += _message_lines(nested, (*path, 3, at), comments)
    return lines


def _text(comment: str) -> str:
    return "\n".join(line.strip() for line in comment.strip().splitlines()).replace("<", "&lt;").replace("[", "\\[")


def _cell(comment: str) -> str:
    return comment.replace("\n", " ").replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
