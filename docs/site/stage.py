"""Writes the sources of the book: every page that docs/README.md leads to, at its place in the repository, and SUMMARY.md.

    docs/site/stage.py FOLDER

Chapters follow the sections and tables of docs/README.md, so the book cannot drift from it. Pages that only other pages
link to come last. Links to folders lead to their README, links to other files to copies of them. A README is the index of its
folder, as mdBook has it.
"""

import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
from pages import ROOT, is_outside, links, pages, resolved, title, tracked_files  # noqa: E402

CONTENTS = "docs/README.md"


def in_book(page):
    """The page's name in the book."""
    return re.sub(r"(^|/)README\.md\b", r"\1index.md", page)


def page_of(target, known):
    """The page behind a link's target: itself, or a folder's README."""
    inner = f"{target}/README.md" if target not in ("", ".") else "README.md"
    return target if target in known else inner if inner in known else None


def linked_pages(page, known):
    """The pages to which a page links, in order."""
    for link in links((ROOT / page).read_text()):
        target = None if is_outside(link) else resolved(page, link)[0]
        found = page_of(target, known) if target is not None else None
        if found:
            yield found


def sections(known):
    """The sections of the list of contents, each with its pages."""
    parts = re.split(r"^## (.*)$", (ROOT / CONTENTS).read_text(), flags=re.MULTILINE)
    seen = {CONTENTS, "README.md"}
    for heading, text in zip(parts[1::2], parts[2::2]):
        chapters = []
        for link in links(text):
            page = None if is_outside(link) else page_of(resolved(CONTENTS, link)[0], known)
            if page and page not in seen:
                seen.add(page)
                chapters.append(page)
        yield heading, chapters


def reached(start, known):
    """All pages that the given ones lead to, directly or not."""
    found, open_pages = list(start), list(start)
    while open_pages:
        for page in linked_pages(open_pages.pop(0), known):
            if page not in found:
                found.append(page)
                open_pages.append(page)
    return found


def summary(known):
    """SUMMARY.md, and the pages in it."""
    chosen = ["README.md", CONTENTS]
    lines = ["# Summary", "", *[f"[{title(page)}]({in_book(page)})" for page in chosen]]
    for heading, chapters in sections(known):
        lines += ["", f"# {heading}", "", *[f"- [{title(page)}]({in_book(page)})" for page in chapters]]
        chosen += chapters
    others = sorted(set(reached(chosen, known)) - set(chosen))
    lines += ["", "# Further pages", "", *[f"- [{title(page)}]({in_book(page)})" for page in others]]
    return "\n".join(lines) + "\n", chosen + others


def staged(page, known, files):
    """The page's text, with links to folders made links to their README, and the files that it links to."""
    text, linked = (ROOT / page).read_text(), []
    for link in set(links(text)):
        target = None if is_outside(link) else resolved(page, link)[0]
        if target is None:
            continue
        path, mark, part = link.partition("#")
        if target in known and path:
            text = text.replace(f"]({link})", f"]({in_book(path)}{mark}{part})")
        elif target in files and target not in known:
            linked.append(target)
        elif path and page_of(target, known):
            text = text.replace(f"]({link})", f"]({path.rstrip('/')}/index.md{mark}{part})")
        elif path:
            # A folder without a page of its own is read in the repository.
            text = re.sub(rf"\[([^\]]*)\]\({re.escape(link)}\)", r"\1", text)
    return text, linked


def stage(folder):
    known, files = set(pages()), set(tracked_files())
    text, chosen = summary(known)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / "SUMMARY.md").write_text(text)
    for page in chosen:
        content, linked = staged(page, known, files)
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / in_book(page)).write_text(content)
        for file in linked:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
    return chosen


if __name__ == "__main__":
    print(f"{len(stage(Path(sys.argv[1])))} pages")
