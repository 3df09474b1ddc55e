"""Puts the image of the Dockerfile together without a container engine: replay_dockerfile.py DOCKERFILE IMAGE BINARY.

The build stage is not run. Its RUN is compared with the command of deploy/archive, whose result is BINARY. The second stage
becomes the folder IMAGE: Debian's packages of the same names as the base image's, then each COPY. An instruction that this
script does not know is an error.
"""

import json
import pathlib
import shlex
import shutil
import subprocess
import sys

# Packages of gcr.io/distroless/cc-debian12.
BASE_PACKAGES = "base-files,ca-certificates,libc6,libgcc-s1,libgomp1,libssl3,libstdc++6,netbase,tzdata"
BUILD = "rm rust-toolchain.toml && cargo build --profile dist --locked -p warmroute-cli"


def main(dockerfile: str, image: str, binary: str) -> None:
    root = pathlib.Path(dockerfile).resolve().parent
    lines = [line for line in pathlib.Path(dockerfile).read_text().splitlines() if line and not line.startswith("#")]
    stage, seen = 0, []
    for line in lines:
        name, rest = line.split(" ", 1)
        seen.append(name)
        match name:
            case "FROM":
                stage += 1
                expected = ["rust:1-bookworm AS build", "gcr.io/distroless/cc-debian12:nonroot"][stage - 1]
                assert rest == expected, line
                if stage == 2:
                    extract(image)
            case "WORKDIR":
                assert (stage, rest) == (1, "/src"), line
            case "COPY" if stage == 1:
                assert rest == ". .", line
                needed = ["Cargo.toml", "Cargo.lock", "crates", "rust-toolchain.toml"]
                ignored = (root / ".dockerignore").read_text().split()
                assert all((root / path).exists() and path not in ignored for path in needed), line
            case "RUN":
                assert (stage, rest) == (1, BUILD), line
            case "COPY":
                source, built, target = shlex.split(rest)
                assert (source, built) == ("--from=build", "/src/target/dist/warmroute"), line
                path = pathlib.Path(image + target)
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(binary, path)
            case "EXPOSE":
                assert rest.split() == ["30000", "29000"], line
            case "ENTRYPOINT":
                [entry] = json.loads(rest)
                run = ["chroot", "--userspec=65532:65532", image, entry, "--version"]
                print(subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip())
            case _:
                sys.exit(f"this script does not know how to replay: {line}")
    assert seen[-1] == "ENTRYPOINT" and stage == 2, seen
    assert not pathlib.Path(image, "bin/sh").exists(), "the image has a shell"


def extract(image: str) -> None:
    command = ["mmdebstrap", "--quiet", "--variant=extract", f"--include={BASE_PACKAGES}", "bookworm", image]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
