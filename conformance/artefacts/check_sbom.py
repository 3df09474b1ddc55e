"""Compares the SBOM with what cargo says is linked into the binary: check_sbom.py ROOT SBOM."""

import json
import re
import subprocess
import sys


def main(root: str, sbom: str) -> None:
    bom = json.load(open(sbom))
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5"), "not a CycloneDX 1.5 list"
    listed = {(row["name"], row["version"]) for row in bom["components"]}
    assert len(listed) == len(bom["components"]), "a crate is listed twice"
    command = ["cargo", "tree", "--locked", "-p", "warmroute-cli", "-e", "normal,build", "--prefix", "none"]
    tree = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    crates = {match.groups() for match in re.finditer(r"^(\S+) v([0-9][^ \n]*)(?: \(\*\)| \(proc-macro\))*$", tree, re.M)}
    assert len(crates) > 100, f"cargo tree lists {len(crates)} crates only"
    # The SBOM is for all features on Linux; cargo tree shows what is built here.
    missing = crates - listed
    assert not missing, f"not in the SBOM: {sorted(missing)}"
    assert "proptest" not in {name for name, _ in listed}, "a crate of the tests is listed"
    for row in bom["components"]:
        assert row["licenses"][0]["expression"], f"{row['name']} has no license"
        assert re.fullmatch("[0-9a-f]{64}", row["hashes"][0]["content"]), f"{row['name']} has no checksum"
    refs = {row["bom-ref"] for row in bom["components"]} | {bom["metadata"]["component"]["bom-ref"]}
    refs |= {edge["ref"] for edge in bom["dependencies"]}
    dangling = {to for edge in bom["dependencies"] for to in edge["dependsOn"]} - refs
    assert not dangling, f"dependencies that are not listed: {sorted(dangling)}"
    print(f"{len(listed)} crates")


if __name__ == "__main__":
    main(*sys.argv[1:])
