"""The repository's Markdown pages: which there are, what they are called, where their links lead."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# A link or a picture: [text](target), with or without a title. Images have the same form.
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(<?([^()\s<>]+(?:\([^()\s]*\))?[^()\s<>]*)>?(?:\s+\"[^\"]*\")?\)")
# [name]: target
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+(\S+)", re.MULTILINE)


def tracked_files():
    """Every file of the repository that git knows or would take."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted({line for line in listed.stdout.splitlines() if (ROOT / line).is_file()})


def pages():
    return [name for name in tracked_files() if name.endswith(".md")]


def prose(text):
    """The text without code, whose brackets are no links."""
    text = re.sub(r"^( *)(```+|~~~+).*?^\1\2\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)


def links(text):
    """Where the page's links lead, in order."""
    plain = prose(text)
    return LINK.findall(plain) + REFERENCE.findall(plain)


def headings(text):
    """The texts of all headings, without marks."""
    outside = re.sub(r"^( *)(```+|~~~+).*?^\1\2\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#{1,6}\s+(.*?)\s*#*\s*$", outside, re.MULTILINE)
    return [re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in found]


def anchors(text):
    """What a link to a part of the page may name, as GitHub and mdBook make it."""
    seen, found = {}, set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in headings(text):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(slug if count == 0 else f"{slug}-{count}")
    return found


def title(name):
    """The page's first heading."""
    found = headings((ROOT / name).read_text())
    return re.sub(r"[`*]", "", found[0]) if found else name


def is_outside(link):
    return re.match(r"[a-z][a-z0-9+.-]*:", link) is not None


def resolved(page, link):
    """File or folder of a link, as a path below the root, and the part of it. `None` if it leads out of the repository."""
    path, _, part = link.partition("#")
    if not path:
        return page, part
    there = (ROOT / page).parent / path
    try:
        return there.resolve().relative_to(ROOT).as_posix(), part
    except ValueError:
        return None, part
