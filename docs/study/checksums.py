#!/usr/bin/env python3
"""Compares the traces in a folder with the checksums of traces.md: docs/study/checksums.py FOLDER

Needs the zstd command; without it files are only looked for."""
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path


def content(file):
    """The uncompressed content of a file, or None without zstd."""
    if not file.exists():
        sys.exit(f"{file}: missing; docs/study/traces.md says where it is published")
    if not shutil.which("zstd"):
        return None
    done = subprocess.run(["zstd", "-dcq", file], capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{file}: damaged, or not compressed with zstd; docs/study/traces.md says where it is published")
    return done.stdout


def main():
    folder = Path(sys.argv[1])
    page = (Path(__file__).resolve().parent / "traces.md").read_text()
    for wanted, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", page, re.MULTILINE):
        found = content(folder / f"{name}.zst")
        if found is None:
            print(f"{name}.zst: not compared, because zstd is not installed", file=sys.stderr)
        elif hashlib.sha256(found).hexdigest() != wanted:
            sys.exit(f"{folder / name}.zst: not the file of docs/study/traces.md; its SHA-256 differs")


if __name__ == "__main__":
    main()
