#!/usr/bin/env python3
"""Puts printed tables into a page: what stands between `<!-- result NAME -->` and `<!-- end -->` becomes NAME.md of the results.

    docs/study/expected_ttft/fill.py [--results FOLDER] [--page FILE] [--check]

The last line of a grid, its counts, stands in the page as well. `<!-- result NAME, red rows -->` leaves out the rows of a table in which
nothing is red. `--check` changes nothing, and fails where the page differs.
"""
import argparse
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent


def red_rows(text):
    """The table's head, its rows with something red, and what follows it. No table where no row is red."""
    lines = text.splitlines()
    table = [line for line in lines if line.startswith("|")]
    red = [line for line in table[2:] if "**" in line]
    rest = [line for line in lines if line and not line.startswith("|")]
    return "\n".join(table[:2] + red + [""] + rest if red else rest)


def filled(page, results):
    def result(match):
        text = (results / f"{match[1]}.md").read_text().strip()
        shown = red_rows(text) if match[2] else text
        return f"<!-- result {match[1]}{match[2] or ''} -->\n\n{shown}\n\n<!-- end -->"

    return re.sub(r"<!-- result ([^\s,]+)(, red rows)? -->\n.*?<!-- end -->", result, page, flags=re.DOTALL)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    arguments.add_argument("--page", type=pathlib.Path, default=HERE / "README.md")
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    before = options.page.read_text()
    after = filled(before, options.results)
    if options.check:
        sys.exit(None if after == before else f"{options.page}: not of the committed results; run {pathlib.Path(__file__).name}")
    options.page.write_text(after)


if __name__ == "__main__":
    main()
