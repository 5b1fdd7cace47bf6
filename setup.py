"""The two build steps that pyproject.toml cannot say: stubs from proto/, and the engine compiled by mypyc.

PURGATORY_BUILD=pure       leave the engine uncompiled
PURGATORY_BUILD=compiled   fail where it cannot be compiled
not set                    compile; where there is no C compiler, go on uncompiled and say so

`python setup.py stubs` generates the stubs, `python setup.py build_ext --inplace` compiles the engine in the tree.
`python setup.py profile` (gcc only) records a profile of the engine at work; later builds are optimised by it.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import ClassVar

from setuptools import Command, Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, ExecError, PlatformError

ROOT = Path(__file__).resolve().parent
PROTO = ROOT / "proto"
STUBS = ROOT / "purgatory" / "v1"
ENGINE = ROOT / "purgatory" / "engine"
GROUP = "purgatory_engine"
SHARED_LIBRARY = f"{GROUP}__mypyc"
"""All compiled modules are in this one. mypyc derives their __file__ from its place, which must be the top level."""

INLINING = ["-fno-semantic-interposition", "-fvisibility=hidden"] if os.name == "posix" else []
"""No function of the library is interposed by another of the same name, so the C compiler may inline them."""

REFERENCES = ROOT / "engine_references.h"
"""How compiled code counts references. Included before the C files that mypyc writes."""

PROFILE = ROOT / "build" / "profile"
INSTRUMENTED = [f"-fprofile-generate={PROFILE}", "-fprofile-update=single"]
BY_PROFILE = [f"-fprofile-use={PROFILE}", "-fprofile-partial-training", "-Wno-missing-profile"]
BY_PROFILE += ["-Wno-coverage-mismatch"]
TRAINING = ("engine-register-complete", "engine-five-partitions", "engine-expire", "wheel", "replay-tape")
TRAINING_OPERATIONS = 20_000

GENERATED_DOCSTRING = '"""The wire: generated from proto/purgatory/v1/ by the build, never edited, not committed."""\n'

NOT_COMPILED = """\
************************************************************************************************
** NO WORKING C COMPILER: the purgatory engine runs UNCOMPILED.
** It behaves the same and is several times slower. To change that, install gcc and Python's
** headers and build again. The compiler said: {error}
************************************************************************************************"""


def proto_files() -> list[Path]:
    return sorted((PROTO / "purgatory" / "v1").glob("*.proto"))


def stubs_are_current() -> bool:
    """True when every stub is there and none is older than what it was generated from."""
    suffixes = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
    for proto in proto_files():
        stubs = [STUBS / (proto.stem + suffix) for suffix in suffixes]
        if not all(stub.exists() and stub.stat().st_mtime >= proto.stat().st_mtime for stub in stubs):
            return False
    return (STUBS / "__init__.py").exists()


def generate_stubs() -> None:
    """Regenerate purgatory/v1/ file by file, and remove the stubs of a .proto that is gone."""
    import grpc_tools  # noqa: PLC0415 - a build requirement; the rest of this file runs without it
    from grpc_tools import protoc  # noqa: PLC0415

    STUBS.mkdir(parents=True, exist_ok=True)
    include = Path(grpc_tools.__file__).parent / "_proto"
    with TemporaryDirectory(dir=STUBS) as fresh:
        arguments = ["protoc", f"-I{PROTO}", f"-I{include}"]
        arguments += [f"--python_out={fresh}", f"--pyi_out={fresh}", f"--grpc_python_out={fresh}"]
        if protoc.main([*arguments, *map(str, proto_files())]) != 0:
            raise SystemExit("setup.py: protoc could not generate the stubs")
        made = Path(fresh) / "purgatory" / "v1"
        (made / "__init__.py").write_text(GENERATED_DOCSTRING, encoding="utf-8")
        for stub in made.glob("*.pyi"):
            stub.write_text(accept_enum_numbers(stub.read_text(encoding="utf-8")), encoding="utf-8")
        names = {path.name for path in made.iterdir()}
        for path in made.iterdir():
            path.replace(STUBS / path.name)
    for path in STUBS.glob("*.py*"):
        if path.name not in names:
            path.unlink()


def accept_enum_numbers(stub: str) -> str:
    """Let enum fields be set from plain integers, as protobuf does at run time; protoc's .pyi forgets it."""
    stub = re.sub(r"_Union\[([\w.]+), str\]", r"_Union[\1, int, str]", stub)
    return re.sub(
        r"RepeatedScalarFieldContainer\[(?!int|str|float|bool|bytes)[\w.]+\]", "RepeatedScalarFieldContainer[int]", stub
    )


class BuildCommand(Command):
    """A command without options."""

    user_options: ClassVar[list[tuple[str, str | None, str]]] = []

    def initialize_options(self) -> None: ...

    def finalize_options(self) -> None: ...


class Stubs(BuildCommand):
    """`python setup.py stubs`."""

    description = "generate purgatory/v1/ from proto/"

    def run(self) -> None:
        generate_stubs()


class Profile(BuildCommand):
    """`python setup.py profile`: compiles the engine in place, instrumented, and runs the training workloads."""

    description = "record a profile that later builds of the engine are optimised by"

    def run(self) -> None:
        shutil.rmtree(PROFILE, ignore_errors=True)
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        said = subprocess.run([*compiler.split(), "--version"], capture_output=True, text=True, check=True).stdout
        if "Free Software Foundation" not in said:
            print(f"no profile: {compiler} is not gcc")
            return
        BuildEngine.profiling = INSTRUMENTED
        self.reinitialize_command("build_ext", inplace=True)
        self.run_command("build_ext")
        for workload in TRAINING:
            subprocess.run(
                [sys.executable, "-m", "bench.counted", workload, str(TRAINING_OPERATIONS)], cwd=ROOT, check=True
            )


class EngineDistribution(Distribution):
    """A distribution with compiled modules, which only `BuildEngine` can list."""

    def has_ext_modules(self) -> bool:
        return os.environ.get("PURGATORY_BUILD") != "pure"


class BuildEngine(build_ext):
    """Compiles purgatory/engine as one group. All or nothing: a partly compiled engine does not import."""

    profiling: ClassVar[list[str]] = BY_PROFILE if PROFILE.exists() else []

    def run(self) -> None:
        build = os.environ.get("PURGATORY_BUILD", "")
        if build == "pure":
            self.extensions = []
            return
        inplace = bool(self.inplace)  # setuptools clears it while it builds, even when that fails
        try:
            self.compile_engine()
        except (CCompilerError, ExecError, PlatformError) as error:
            if build == "compiled":
                raise
            self.remove_outputs(inplace=inplace)
            print(NOT_COMPILED.format(error=shorten(str(error), 200)), file=sys.stderr)

    def compile_engine(self) -> None:
        from mypyc.build import mypycify  # noqa: PLC0415 - a build requirement, slow to import

        self.force = bool(self.force or self.profiling)  # objects built without the profile look up to date
        os.chdir(ROOT)  # mypy finds its settings in pyproject.toml here
        modules = sorted(str(path.relative_to(ROOT)) for path in ENGINE.rglob("*.py") if path.name != "__init__.py")
        extensions = mypycify(modules, opt_level="3", debug_level="0", group_name=GROUP, target_dir=self.build_temp)
        for extension in extensions:  # mypyc's lists are shared by all extensions, so they are replaced
            extension.extra_compile_args = [*extension.extra_compile_args, *INLINING, *self.profiling]
            extension.extra_link_args = [*extension.extra_link_args, *self.profiling]
            if extension.name == SHARED_LIBRARY and os.name == "posix":
                extension.extra_compile_args += ["-include", str(REFERENCES)]
                extension.depends += [str(REFERENCES)]
        self.distribution.ext_modules = extensions
        self.swig_opts = None  # finalize_options() made it a list, which it cannot read again
        self.finalize_options()
        super().run()

    def remove_outputs(self, *, inplace: bool) -> None:
        outputs = [Path(output) for output in self.get_outputs()]
        if inplace:
            outputs += [*ENGINE.rglob("*.so"), *ROOT.glob(f"{SHARED_LIBRARY}*.so")]
        for output in outputs:
            output.unlink(missing_ok=True)
        self.extensions = []


if __name__ == "__main__":
    # Before setup(), which looks for packages at once: purgatory.v1 must be among them.
    if not stubs_are_current() and "stubs" not in sys.argv:
        generate_stubs()
    try:
        setup(
            cmdclass={"build_ext": BuildEngine, "profile": Profile, "stubs": Stubs},
            distclass=EngineDistribution,
            # Only a name, so that an editable install finds it later too; BuildEngine fills it.
            ext_modules=[Extension(SHARED_LIBRARY, [])],
        )
    except BaseError as problem:
        raise SystemExit(f"setup.py: {problem}") from problem
