"""What all artefacts share: the binary, its version and architecture, the files beside it, and the output folder.

deploy/archive, deploy/wheel and deploy/deb use this. Without --binary they build the binary as a release does; with it
they package a ready one, for tests and for cross builds. The same inputs give the same bytes: times come from
SOURCE_DATE_EPOCH, or else from the last commit.
"""

import argparse
import atexit
import dataclasses
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUMMARY = "Cache-aware router for LLM engines"
SHELLS = {"bash": "warmroute", "zsh": "_warmroute", "fish": "warmroute.fish"}

# e_machine of the ELF header: the names in archives and wheels, and Debian's.
MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}


@dataclasses.dataclass
class Artefact:
    """A binary that is ready to be packaged, and where the package goes."""

    binary: pathlib.Path
    out: pathlib.Path
    version: str
    machine: str
    debian_machine: str
    # Minor version of the newest glibc symbol that the binary needs; None for a static binary.
    glibc_minor: int | None
    time: int
    # A binary of the same version that runs on this machine.
    native: pathlib.Path

    @property
    def name(self) -> str:
        return f"warmroute-{self.version}-{self.machine}-linux"

    def run(self, *arguments: str) -> str:
        """What the binary prints."""
        return subprocess.run([self.native, *arguments], check=True, capture_output=True, text=True).stdout

    def write_manual(self, folder: pathlib.Path) -> None:
        """Man pages, one for each subcommand."""
        folder.mkdir(parents=True, exist_ok=True)
        self.run("man", "--dir", str(folder))

    def write_completions(self, folder: pathlib.Path) -> None:
        """Completions, in one folder for each shell."""
        for shell, name in SHELLS.items():
            (folder / shell).mkdir(parents=True, exist_ok=True)
            (folder / shell / name).write_text(self.run("completions", shell))


def prepare(description: str) -> Artefact:
    """Reads the arguments, builds the binary if none is given, and strips a copy of it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--binary", type=pathlib.Path, help="package this binary instead of building one")
    parser.add_argument("--native", type=pathlib.Path, help="a binary that runs here, where --binary does not")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target" / "artefacts", help="output folder")
    arguments = parser.parse_args()
    binary = (arguments.binary or build()).resolve()
    if not binary.is_file():
        sys.exit(f"error: there is no binary at {binary}: build it, or give another with --binary")
    machine, debian_machine = machine_of(binary)
    arguments.out.mkdir(parents=True, exist_ok=True)
    return Artefact(
        binary=stripped(binary),
        out=arguments.out.resolve(),
        version=version(),
        machine=machine,
        debian_machine=debian_machine,
        glibc_minor=glibc_minor(binary),
        time=source_time(),
        native=(arguments.native or binary).resolve(),
    )


def build() -> pathlib.Path:
    subprocess.run(["cargo", "build", "--profile", "dist", "--locked", "-p", "warmroute-cli"], cwd=ROOT, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "dist" / "warmroute"


def version() -> str:
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def machine_of(binary: pathlib.Path) -> tuple[str, str]:
    head = binary.read_bytes()[:20]
    machine = int.from_bytes(head[18:20], "little")
    if head[:4] != b"\x7fELF" or machine not in MACHINES:
        sys.exit(f"error: {binary} is not a Linux binary for x86-64 or arm64")
    return MACHINES[machine]


def glibc_minor(binary: pathlib.Path) -> int | None:
    minors = re.findall(rb"\x00GLIBC_2\.(\d+)(?:\.\d+)?(?=\x00)", binary.read_bytes())
    return max(map(int, minors), default=None)


def stripped(binary: pathlib.Path) -> pathlib.Path:
    """A copy without symbols, removed when the script ends."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="warmroute-artefact-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = folder / "warmroute"
    shutil.copy(binary, copy)
    # The strip of another architecture has a prefix. A release build has no symbols anyway.
    if subprocess.run(["strip", str(copy)], capture_output=True, check=False).returncode != 0:
        shutil.copy(binary, copy)
    copy.chmod(0o755)
    return copy


def source_time() -> int:
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    commit = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(commit.stdout.strip() or 0)


def set_times(folder: pathlib.Path, time: int) -> None:
    """Gives all files one time, so that packages of the same files are the same."""
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (time, time), follow_symlinks=False)


def compress(path: pathlib.Path) -> None:
    """Replaces a file by its gzip, without a time or a name in it."""
    with open(f"{path}.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(path.read_bytes())
    path.unlink()
