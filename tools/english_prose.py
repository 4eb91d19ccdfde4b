#!/usr/bin/env python3
"""English prose out of unpacked documentation packages, one document a line, for runs over text that does not repeat.

    for p in linux-doc-6.1 anarchism debian-handbook postgresql-doc-15 perl-doc libreoffice-help-en-us \\
             developers-reference debian-policy python3.11-doc gimp-help-en; do
      apt-get download $p && dpkg -x ${p}_*.deb packages/$p
    done
    english_prose.py packages prose.jsonl

Paragraphs of 120 characters and more that are mostly letters, each once (by its first 80 letters and digits), in the
order of the files; documents shuffled. Packages of Debian 12 as of November 2026 give 46.7 MB.
"""
import gzip
import html.parser
import json
import os
import random
import re
import sys

BREAKS = {"p", "div", "li", "h1", "h2", "h3", "h4", "tr", "pre", "dt", "dd"}
HIDDEN = {"script", "style", "nav", "head"}
PAGES_ONLY = {"anarchism", "python3.11-doc", "debian-policy", "developers-reference", "debian-handbook"}


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts, self.hidden = [], 0

    def handle_starttag(self, tag, attrs):
        self.hidden += tag in HIDDEN
        if tag in BREAKS or tag in {"br", "table", "section"}:
            self.parts.append("\n\n")

    def handle_endtag(self, tag):
        if tag in HIDDEN and self.hidden:
            self.hidden -= 1
        if tag in BREAKS:
            self.parts.append("\n\n")

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(data)


def is_wanted(package, path, name):
    if package in PAGES_ONLY and not name.endswith(".html"):
        return False
    if name in {"policy-1.html", "single.html"} or "singlehtml" in path:
        return False
    if package == "debian-handbook":
        return "en-US" in path
    if package == "gimp-help-en":
        return "/en" in path
    if package == "linux-doc-6.1":
        return "translations" not in path and name.endswith((".rst.gz", ".txt.gz", ".rst"))
    return name.endswith((".gz", ".html", ".txt", ".rst", ".pod", ".md"))


def text_of(path, name):
    with (gzip.open if name.endswith(".gz") else open)(path, "rb") as file:
        text = file.read().decode("utf8", "replace")
    if name.endswith(".html"):
        page = Page()
        page.feed(text)
        return "".join(page.parts)
    if name.endswith((".3perl.gz", ".1.gz", ".3.gz", ".7.gz")) or "/man/" in path:
        text = re.sub(r"(?m)^\.[A-Z].*$", "\n\n", text)
        text = re.sub(r"\\f[A-Z]|\\&|\\-", "", text)
    return text


def is_prose(paragraph):
    letters = sum(c.isalpha() or c in " ,." for c in paragraph)
    foreign = sum(ord(c) > 127 for c in paragraph)
    return len(paragraph) >= 120 and letters >= 0.88 * len(paragraph) and foreign <= 0.02 * len(paragraph)


def main():
    root, out = sys.argv[1:]
    seen, documents = set(), []
    for package in sorted(os.listdir(root)):
        for folder, _, names in sorted(os.walk(os.path.join(root, package))):
            for name in sorted(names):
                path = os.path.join(folder, name)
                if os.path.islink(path) or not is_wanted(package, path, name):
                    continue
                kept = []
                for paragraph in re.split(r"\n\s*\n", text_of(path, name)):
                    paragraph = re.sub(r"\s+", " ", paragraph).strip()
                    if not is_prose(paragraph):
                        continue
                    key = "".join(c for c in paragraph.lower() if c.isalnum())[:80]
                    if key not in seen:
                        seen.add(key)
                        kept.append(paragraph)
                if sum(map(len, kept)) > 400:
                    documents.append("\n".join(kept))
    random.Random(1).shuffle(documents)
    with open(out, "w", encoding="utf8") as file:
        for document in documents:
            file.write(json.dumps({"text": document}) + "\n")
    print(f"{len(documents)} documents, {sum(map(len, documents)) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
