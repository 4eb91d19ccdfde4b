#!/usr/bin/env python3
"""Compares `deltatrain tokenizer` with the reference libraries, id by id. Run by tools/check_tokenizers.sh.

    check_tokenizers.py PROGRAM TOKENIZER [--reference LIBRARY] [--text FILE ...] [--text-bytes N] [--results FILE]
                        [--random N] [--seed N]

TOKENIZER is a folder with tokenizer.json for the library `tokenizers`, Llama 3's tokenizer.model for `tiktoken`, a
.model file for `sentencepiece`. Every string is encoded by both, with and without special tokens where the library
knows them, and the ids are decoded by both; every code point and texts of files (in pieces of 20,000 characters) once
only. The first differences are shown; the exit status is 1 if there are any.

The texts of files take long: what became of each is kept in --results, one line of JSON a file, and a file that was
compared before, with the same program, vocabulary and library, is not compared again. What the library gave for a file
is kept beside that, for other programs.
"""
import argparse
import array
import base64
import hashlib
import importlib.metadata
import json
import os
import random
import re
import subprocess
import sys
import unicodedata

SURROGATES = range(0xD800, 0xE000)
SPACES = [chr(c) for c in (9, 10, 11, 12, 13, 0x20, 0x85, 0xA0, 0x1680, 0x2003, 0x200B, 0x2028, 0x2029, 0x202F, 0x3000, 0xFEFF)]


def code_points():
    return [c for c in range(0x110000) if c not in SURROGATES]


def every_code_point():
    """Each code point alone, after a letter, after a blank, after an apostrophe, doubled, between digits."""
    for c in code_points():
        char = chr(c)
        assigned = unicodedata.category(char) != "Cn" and unicodedata.category(char) != "Co"
        if assigned or c % 61 == 0:
            yield from (char, "a" + char, " " + char, "'" + char, char + char + "b", "1" + char + "2", " \n" + char)
        else:
            yield "a" + char + " " + char + "1'" + char


def fixed_cases(special):
    yield ""
    for n in (1, 2, 3, 4, 7, 8, 15, 16, 17, 40, 41, 64, 65, 127, 1000, 20000):
        for unit in ("a", " ", "\n", "\t", "\r\n", "^", "_", "0", "\u3000", "\u0301", "e\u0301", "\U0001F469\u200D", "=-", " a", "\u4e2d", "'s"):
            yield unit * n
            yield "x" + unit * n + "y"
            yield unit * n + " y\n"
    for word in ("I'M", "I'm", "we'LL", "he'S", "'S", "'re're", "don''t", "'\u017f", "'\u212a", "rock'n'roll", "l'Re", "d'\u017ft"):
        yield word
        yield " " + word + " "
    for n in range(1, 12):
        yield "1234567890123"[:n]
        yield "a" + "\u0661\u0662\u0663\u0664\u0665"[:n] + "b"
    yield "\U0001F469\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466 \U0001F1E9\U0001F1EA\U0001F1EB \U0001F44D\U0001F3FD"
    yield "\r\n\r\n a\u00a0b\u2028c\u2029d\u0085e\ufeff"
    yield "\ufffd\x00\x01\x7f"
    rng = random.Random(7)
    yield "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=20000))
    yield base64.b64encode(rng.randbytes(15000)).decode()
    for token in special:
        for text in (token, "a" + token, token + "a", " " + token + " ", token * 3, token[:-1], token[1:], token[:-1] + token,
                     "\u00e9" + token + "\u00e9", "_" + token + "_", "\n\t" + token + "\r\n", token[:2] + token):
            yield text


def random_strings(count, seed, special):
    rng = random.Random(seed)
    points = code_points()
    assigned = [c for c in points if unicodedata.category(chr(c)) not in ("Cn", "Co")]
    small = [c for c in assigned if c < 0x3000]
    ascii_text = [chr(c) for c in range(32, 127)] + ["\n", "\t", " ", " ", "e", "t"]
    pieces = ["'s", "'S", "'ll", "'VE", "\r\n", "  ", "\n\n", "123", "the", " The", "\u200d", "\u0301", "\u00e9", "\u4e2d\u6587", "\u1100\u1161\u11a8"] + list(special)[:20]
    for _ in range(count):
        kind = rng.randrange(6)
        length = rng.choice((1, 2, 3, 5, 9, 20, 60))
        if kind == 0:
            yield "".join(chr(rng.choice(points)) for _ in range(length))
        elif kind == 1:
            yield "".join(chr(rng.choice(small)) for _ in range(length))
        elif kind == 2:
            yield "".join(rng.choice(ascii_text) for _ in range(length * 3))
        elif kind == 3:
            yield "".join(rng.choice(pieces) for _ in range(length))
        elif kind == 4:
            yield "".join(rng.choice(SPACES + ["a", "1", "."]) for _ in range(length * 2))
        else:
            yield "".join(rng.choice(pieces + ascii_text + SPACES + [chr(rng.choice(assigned))]) for _ in range(length * 2))


def ill_formed(count, seed):
    """Bytes of which many are not UTF-8: cut, overlong and surrogate sequences, stray bytes, among text."""
    rng = random.Random(seed)
    broken = [b"\xc3(", b"\xf5", b"\xc0\x80", b"\xed\xa0\x80", b"\xed\xa0\xbd\xed\xb1\x8d", b"\xe2\x82", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80",
              b"\x80", b"\xff\xfe", b"\xe0\x80\xaf"]
    good = [b" the", b"a", b"\n", b" 12", b"'s", "\u00e9".encode(), "\u4e2d".encode(), "\U0001f44d".encode()]
    return b"".join(rng.choice((rng.choice(broken), rng.choice(good), rng.randbytes(1))) for _ in range(count))


def documents(path, limit, size=20000):
    """Lists of pieces, a few megabytes at a time."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        text = file.read(limit)
    pieces = [text[begin : begin + size] for begin in range(0, len(text), size)]
    for begin in range(0, len(pieces), 200):
        yield pieces[begin : begin + 200]


def run(program, arguments, lines):
    data = "\n".join(json.dumps(line) for line in lines) + "\n"
    result = subprocess.run([program, "tokenizer", *arguments, "--jsonl"], input=data.encode(), capture_output=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{program}: exit {result.returncode}: {result.stderr.decode()}")
    return [json.loads(line) for line in result.stdout.splitlines()]


class TokenizersReference:
    def __init__(self, path):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(path + "/tokenizer.json")
        self.special = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
        self.with_special = (True, False)

    def encode(self, strings, special):
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(strings, add_special_tokens=special)]

    def decode(self, ids, skip_special):
        return self.tokenizer.decode_batch(ids, skip_special_tokens=skip_special)


class TiktokenReference:
    """Llama 3's words and ranks; ordinary text only, as the library finds special tokens on request."""

    PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

    def __init__(self, path):
        import tiktoken

        lines = (line.split() for line in open(path, "rb"))
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        self.tokenizer = tiktoken.Encoding("llama3", pat_str=self.PATTERN, mergeable_ranks=ranks, special_tokens={})
        self.special = []
        self.with_special = (False,)

    def encode(self, strings, special):
        return self.tokenizer.encode_ordinary_batch(strings, num_threads=2)

    def decode(self, ids, skip_special):
        return [self.tokenizer.decode(item) for item in ids]


class SentencePieceReference:
    """Control symbols spelled out in a text are their ids for `tokenizers` and here, but letters for this library, which
    gets what stands between them instead."""

    def __init__(self, path):
        import sentencepiece

        self.tokenizer = sentencepiece.SentencePieceProcessor(model_file=path)
        size = self.tokenizer.get_piece_size()
        self.ids = {self.tokenizer.id_to_piece(i): i for i in range(size) if self.tokenizer.is_control(i) or self.tokenizer.is_unknown(i)}
        self.symbols = re.compile("(" + "|".join(map(re.escape, self.ids)) + ")")
        self.special = list(self.ids)
        self.with_special = (False,)

    def encode(self, strings, special):
        encoded = self.tokenizer.encode(strings, num_threads=2)
        for number, text in enumerate(strings):
            parts = self.symbols.split(text)
            if len(parts) > 1:
                encoded[number] = [i for part in parts if part for i in ([self.ids[part]] if part in self.ids else self.tokenizer.encode(part))]
        return encoded

    def decode(self, ids, skip_special):
        return None  # reads ill-formed bytes in another way; decoding follows `tokenizers`


class KeptReference:
    """What a library gave for the pieces of one file, part by part: asked for once, later read from `path`."""

    def __init__(self, reference, path):
        self.reference = reference
        self.path = path
        self.with_special = reference.with_special
        self.is_kept = os.path.exists(path)
        self.file = open(path if self.is_kept else path + ".part", "rb" if self.is_kept else "wb")

    def finish(self):
        self.file.close()
        if not self.is_kept:
            os.rename(self.path + ".part", self.path)

    def numbers(self, count):
        numbers = array.array("i")
        numbers.fromfile(self.file, count)
        return numbers.tolist()

    def encode(self, strings, special):
        if self.is_kept:
            return [self.numbers(count) for count in self.numbers(len(strings))]
        ids = self.reference.encode(strings, special)
        array.array("i", map(len, ids)).tofile(self.file)
        for item in ids:
            array.array("i", item).tofile(self.file)
        return ids

    def decode(self, ids, skip_special):
        """Digests of the texts."""
        if self.is_kept:
            return [self.file.read(16) for _ in ids] if self.numbers(1)[0] else None
        decoded = self.reference.decode(ids, skip_special)
        array.array("i", [decoded is not None]).tofile(self.file)
        if decoded is None:
            return None
        digests = [text_digest(text) for text in decoded]
        self.file.write(b"".join(digests))
        return digests


def text_digest(text):
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


REFERENCES = {"tokenizers": TokenizersReference, "tiktoken": TiktokenReference, "sentencepiece": SentencePieceReference}


def check(program, path, reference, parts, name, modes=2):
    """`parts` are lists of strings, each compared as a whole."""
    differences = 0
    total = 0
    count = 0
    size = 0

    def report(text):
        nonlocal differences
        differences += 1
        if differences <= 5:
            print(f"  {name}: {text}")

    for strings, special in ((strings, special) for strings in parts for special in reference.with_special[:modes]):
        if special == reference.with_special[0]:
            count += len(strings)
            size += sum(len(text.encode("utf-8", "surrogatepass")) for text in strings)
        flags = [] if special else ["--no-special-tokens"]
        ours = run(program, ["encode", "--tokenizer", path, *flags], strings)
        theirs = reference.encode(strings, special)
        assert len(ours) == len(theirs), (len(ours), len(theirs))
        for text, a, b in zip(strings, ours, theirs):
            total += len(b)
            if a != b:
                at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                report(f"{text[:80]!r}: from {at}: ours {a[at:at + 10]} reference {b[at:at + 10]}")
        expected = reference.decode(theirs, special)
        if expected is None:
            continue
        decoded = run(program, ["decode", "--tokenizer", path, *(["--skip-special-tokens"] if special else [])], theirs)
        for ids, a, b in zip(theirs, decoded, expected):
            if (text_digest(a) if isinstance(b, bytes) else a) != b:
                report(f"decode {ids[:20]}: ours {a[:60]!r} reference {b[:60]!r}")
    print(f"{path}: {name}: {count} strings, {size / 1e6:.1f} MB, {total} tokens, {differences} differences", flush=True)
    return {"bytes": size, "tokens": total, "differences": differences}


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_texts(program, path, reference, arguments):
    """File by file; what was done before counts too."""
    vocabulary = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    library = arguments.reference + " " + importlib.metadata.version(arguments.reference)
    key = {"program": digest(program), "tokenizer": digest(vocabulary), "reference": library, "characters": arguments.text_bytes}
    done = {}
    if arguments.results and os.path.exists(arguments.results):
        with open(arguments.results) as file:
            for line in map(json.loads, file):
                if all(line[name] == value for name, value in key.items()):
                    done[line["text"]] = line
    sums = {"bytes": 0, "tokens": 0, "differences": 0}
    for text in arguments.text:
        content = digest(text)
        name = os.path.basename(text)
        line = done.get(content)
        if line is None and not arguments.results:
            line = check(program, path, reference, documents(text, arguments.text_bytes), name, 1)
        elif line is None:
            request = json.dumps([key["tokenizer"], library, content, arguments.text_bytes])
            kept = KeptReference(reference, f"{arguments.results}.{hashlib.sha256(request.encode()).hexdigest()[:32]}")
            line = check(program, path, kept, documents(text, arguments.text_bytes), name, 1)
            kept.finish()
            with open(arguments.results, "a") as file:
                file.write(json.dumps({**key, "text": content, "name": name, **line}) + "\n")
        for what in sums:
            sums[what] += line[what]
    print(f"{path}: {library}: {len(arguments.text)} texts, {sums['bytes'] / 1e6:.1f} MB, {sums['tokens']} tokens, "
          f"{sums['differences']} differences", flush=True)
    return sums["differences"]


def check_ill_formed(program, path, reference, count, seed):
    """As one text, in which the reference sees what Python's errors="replace" makes of it."""
    data = ill_formed(count, seed)
    result = subprocess.run([program, "tokenizer", "encode", "--tokenizer", path, "--no-special-tokens", "--on-invalid", "replace"],
                            input=data, capture_output=True, check=True)
    ours = [int(word) for word in result.stdout.split()]
    theirs = reference.encode([data.decode(errors="replace")], False)[0]
    print(f"{path}: bytes that are not UTF-8: {len(data) / 1e6:.1f} MB, {len(theirs)} tokens, {int(ours != theirs)} differences", flush=True)
    return int(ours != theirs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("tokenizer")
    parser.add_argument("--reference", choices=REFERENCES, default="tokenizers")
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument("--text-bytes", type=int, default=40_000_000, help="characters of each file that are used")
    parser.add_argument("--results", help="file that keeps what was compared")
    parser.add_argument("--only-text", action="store_true")
    parser.add_argument("--random", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-code-points", action="store_true")
    arguments = parser.parse_args()

    reference = REFERENCES[arguments.reference](arguments.tokenizer)
    differences = 0

    def compare(name, parts, modes=2):
        nonlocal differences
        differences += check(arguments.program, arguments.tokenizer, reference, parts, name, modes)["differences"]

    if not arguments.only_text:
        compare("fixed cases", [list(fixed_cases(reference.special[:40]))])
        if not arguments.no_code_points:
            compare("every code point", [list(every_code_point())], modes=1)
        differences += check_ill_formed(arguments.program, arguments.tokenizer, reference, 5 * arguments.random, arguments.seed)
        compare("random strings", [list(random_strings(arguments.random, arguments.seed, reference.special))])
    if arguments.text:
        differences += check_texts(arguments.program, arguments.tokenizer, reference, arguments)
    sys.exit(1 if differences else 0)


main()
