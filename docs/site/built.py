"""Checks a built book: every link and picture leads to a file of the book, every anchor to an element, and the search index
knows every page.

    docs/site/built.py FOLDER
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the ids of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids |= {attributes.get("id"), attributes.get("name")} - {None}
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]


def main(folder):
    pages = {path: Page(path.read_text()) for path in folder.rglob("*.html")}
    # The printed page repeats all others, and the page for missing ones has links from the root.
    own = {path: page for path, page in pages.items() if path.name not in ("print.html", "404.html", "toc.html")}
    wrong = []
    for path, page in own.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                wrong.append(f"{path.relative_to(folder)}: {link} leads nowhere")
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].ids:
                wrong.append(f"{path.relative_to(folder)}: {link} names no heading")
    index = "".join(path.read_text() for path in folder.glob("searchindex*.js*"))
    wrong += [f"search does not know {path.relative_to(folder)}" for path in own
              if not re.search(re.escape(path.relative_to(folder).as_posix()), index) and path.name != "index.html"]
    for complaint in wrong[:50]:
        print(complaint)
    print(f"{len(own)} pages of the book, {len(wrong)} mistakes")
    return 1 if wrong or len(own) < 20 else 0


sys.exit(main(Path(sys.argv[1]).resolve()))
