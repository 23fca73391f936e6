"""The GIMP manual: figures with captions, and whole pages with up to 24 pictures."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

from .packages import Cache
from .sets_images import debian_licence
from .writer import MARK, SetWriter

MAX_PICTURES = 24  # of one page
SILENT_TAGS = {"script", "style", "head"}
SILENT_CLASSES = {"navheader", "navfooter"}
BREAKS = {"p", "div", "li", "h1", "h2", "h3", "h4", "h5", "tr", "dt", "dd", "br", "pre"}
ICONS = re.compile(r"images/(callouts|(note|tip|warning|caution|important|prev|next|up|home)\b)")


class Page(HTMLParser):
    """Reads one page of the manual: `text`, its `pictures` in order, and `figures` as (pictures, caption)."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.pictures: list[str] = []
        self.figures: list[tuple[list[str], str]] = []
        self._text: list[str] = []
        self._divs: list[str] = []
        self._silent = 0
        self._figure: tuple[list[str], list[str]] | None = None
        self.feed(source)
        lines = (" ".join(line.split()) for line in "".join(self._text).split("\n"))
        self.text = "\n".join(line for line in lines if line)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opens a block; notes a picture."""
        given = dict(attrs)
        kind = given.get("class") or ""
        if tag == "div":
            self._divs.append(kind)
            if kind == "figure":
                self._figure = ([], [])
        if tag in SILENT_TAGS or (tag == "div" and kind in SILENT_CLASSES):
            self._silent += 1
        if tag in BREAKS:
            self._text.append("\n")
        source = given.get("src") or ""
        if tag == "img" and not self._silent and source.startswith("images/") and not ICONS.match(source):
            self.pictures.append(source)
            if self._figure:
                self._figure[0].append(source)

    def handle_endtag(self, tag: str) -> None:
        """Closes a block; a figure's caption is complete then."""
        kind = self._divs.pop() if tag == "div" and self._divs else ""
        if tag in SILENT_TAGS or kind in SILENT_CLASSES:
            self._silent -= 1
        if kind == "figure" and self._figure:
            pictures, words = self._figure
            caption = re.sub(r"^Figure [\w.]+\.\s*", "", " ".join("".join(words).split()))
            if pictures and caption:
                self.figures.append((pictures, caption))
            self._figure = None

    def handle_data(self, data: str) -> None:
        """Takes visible text."""
        if not self._silent:
            self._text.append(re.sub(r"\s+", " ", data))
            if self._figure:
                self._figure[1].append(data)


def gimphelp(cache: Cache, writer: SetWriter) -> str:
    """Every figure asks for its caption; every page is explained below its figures."""
    folder = cache.debian("gimp-help-en")
    root = folder / "usr/share/gimp/2.0/help/en"
    stored: dict[Path, str] = {}

    def image(name: str) -> str | None:
        path = (root / name).resolve()
        if path.is_file() and path not in stored:
            stored[path] = writer.image(name.removeprefix("images/"), path)
        return stored.get(path)

    for file in sorted(root.glob("*.html")):
        source = file.read_text(encoding="utf-8", errors="replace")
        page = Page(source)
        for k, (names, caption) in enumerate(page.figures):
            images = [i for i in map(image, names) if i]
            if images:
                ask = f"{MARK}\n" * len(images) + "Write a caption for this figure of a manual."
                writer.add(f"gimphelp/figure/{file.stem}/{k}", [(ask, caption)], images)
        if len(page.text) > 200 and MARK not in page.text:
            found = re.search(r"<title>(.*?)</title>", source, re.S)
            title = re.sub(r"^[\dA-Z.]+\s+", "", " ".join(html.unescape(found[1]).split())) if found else file.stem
            images = [i for i in map(image, page.pictures) if i][:MAX_PICTURES]
            ask = f"Explain “{title}” of GIMP."
            if images:
                ask = "The figures of a page of the manual, in order:\n" + f"{MARK}\n" * len(images) + ask
            writer.add(f"gimphelp/page/{file.stem}", [(ask, page.text)], images)
    return debian_licence(folder, "gimp-help-en", "The GIMP user manual, GFDL-1.2")
