#!/usr/bin/env python3
"""Short pages of LibreOffice's help in ten languages, one document a line, for runs over text that does not repeat.

    for l in cs de es fr it nl pl pt ru sv; do
      apt-get download libreoffice-help-$l && dpkg -x libreoffice-help-${l}_*.deb packages/$l
    done
    help_pages.py packages pages.jsonl

Pages of at least 400 characters without blanks around them and less than 6,500 with them, each once (by its first 400
letters and digits), shuffled, the first 29 MB. Packages
of Debian 12 as of November 2026 (7.4.7-1+deb12u14) give 15,428 documents, 7.48 million tokens of Llama 3's vocabulary.
"""
import json
import os
import random
import re
import sys

import english_prose

LANGUAGES = ["de", "fr", "es", "it", "ru", "pt", "nl", "pl", "cs", "sv"]
LIMIT_BYTES = 29_000_000


def pages(root):
    for language in LANGUAGES:
        for folder, _, names in sorted(os.walk(os.path.join(root, language))):
            for name in sorted(names):
                if name.endswith(".html"):
                    yield os.path.join(folder, name)


def text_of(path):
    page = english_prose.Page()
    with open(path, encoding="utf8") as file:
        page.feed(file.read())
    return re.sub(r"\n{3,}", "\n\n", "".join(page.parts))


def main():
    root, out = sys.argv[1:]
    seen, documents = set(), []
    for path in pages(root):
        text = text_of(path)
        if len(text) >= 6500 or len(text.strip()) < 400:
            continue
        text = text.strip()
        key = re.sub(r"\W+", "", text)[:400]
        if key not in seen:
            seen.add(key)
            documents.append(text)
    random.Random(1).shuffle(documents)
    size = count = 0
    with open(out, "w", encoding="utf8") as file:
        for document in documents:
            if size > LIMIT_BYTES:
                break
            file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
            size += len(document.encode())
            count += 1
    print(f"{count} documents, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
