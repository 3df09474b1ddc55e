#!/usr/bin/env python3
"""Compares the traces in a folder with the checksums of traces.md: docs/study/checksums.py FOLDER

Compressed files are read with the zstd command; without it they are left out."""
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path


def content(file):
    """The uncompressed content, or None where it cannot be read."""
    if file.exists():
        return file.read_bytes()
    packed = file.with_name(file.name + ".zst")
    if not packed.exists():
        sys.exit(f"{file}: missing; docs/study/traces.md says where it is published")
    return subprocess.run(["zstd", "-dcq", packed], check=True, capture_output=True).stdout if shutil.which("zstd") else None


def main():
    folder = Path(sys.argv[1])
    page = (Path(__file__).resolve().parent / "traces.md").read_text()
    for wanted, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", page, re.MULTILINE):
        found = content(folder / name)
        if found is None:
            print(f"{name}: not compared, because zstd is not installed", file=sys.stderr)
        elif hashlib.sha256(found).hexdigest() != wanted:
            sys.exit(f"{folder / name}: not the file of docs/study/traces.md; its SHA-256 differs")


if __name__ == "__main__":
    main()
