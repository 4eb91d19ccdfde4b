#!/usr/bin/env python3
"""Writes src/text/case_tables.cpp: lower and title case of code points, and what decides the form of a final sigma.

    python3 tools/case_tables.py src/text

The tables are what this Python's str.lower() and str.title() do with single characters (Python 3.11: Unicode 14.0).
"""
import os
import sys
import unicodedata


def code_points():
    return (c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)


def ranges(mapping):
    """Mappings with the same difference, at steps of one or two, as (first, last, step, difference)."""
    result = []
    for c, to in sorted(mapping.items()):
        difference = to - c
        if result:
            first, last, step, of_range = result[-1]
            gap = c - last
            if of_range == difference and (gap == step or (first == last and gap in (1, 2))):
                result[-1] = (first, c, gap, difference)
                continue
        result.append((c, c, 1, difference))
    return result


def borders(members):
    """Begin and end of each run of members, ends exclusive."""
    result = []
    for c in sorted(members):
        if result and result[-1][1] == c:
            result[-1] = (result[-1][0], c + 1)
        else:
            result.append((c, c + 1))
    return result


def single(text):
    return len(text) == 1


def table(file, kind, name, rows):
    print(f"const {kind} {name}[] = {{", file=file)
    line = "   "
    for row in rows:
        item = " {" + ", ".join(row) + "},"
        if len(line) + len(item) > 98:
            print(line, file=file)
            line = "   "
        line += item
    print(line, file=file)
    print(f"}};\nconst int kNum{name[1:]} = static_cast<int>(std::size({name}));\n", file=file)


def main(folder):
    lower = {c: chr(c).lower() for c in code_points() if chr(c).lower() != chr(c)}
    title = {c: chr(c).title() for c in code_points() if chr(c).title() != chr(c)}
    lower[0x3A3] = "\u03c3"  # alone; final_sigma() decides
    cased = {c for c in code_points() if (chr(c) + "\u03a3").lower()[-1] == "\u03c2"}
    ignorable = {c for c in code_points() if c not in cased and ("A" + chr(c) + "\u03a3").lower()[-1] == "\u03c2"}
    with open(os.path.join(folder, "case_tables.cpp"), "w") as file:
        print("// Written by tools/case_tables.py from Unicode " + unicodedata.unidata_version + ". Do not edit.", file=file)
        print("// clang-format off", file=file)
        print('#include <iterator>\n\n#include "text/case_mapping.h"\n', file=file)
        print("namespace deltatrain::text::internal {\n", file=file)
        for name, mapping in (("kLower", lower), ("kTitle", title)):
            rows = ranges({c: ord(to) for c, to in mapping.items() if single(to)})
            table(file, "CaseRange", name + "Ranges", [(hex(a), hex(b), str(s), str(d)) for a, b, s, d in rows])
            rows = [(c, [ord(x) for x in to] + [0] * (3 - len(to))) for c, to in sorted(mapping.items()) if not single(to)]
            table(file, "CaseExpansion", name + "Expansions", [(hex(c), *map(hex, to)) for c, to in rows])
        for name, members in (("kCased", cased), ("kCaseIgnorable", ignorable)):
            table(file, "CaseBorders", name, [(hex(a), hex(b)) for a, b in borders(members)])
        print("}  // namespace deltatrain::text::internal", file=file)


if __name__ == "__main__":
    main(sys.argv[1])
