"""Compares prepare and the data orders with the reference libraries themselves, on random small data sets.

    python check_data.py --program build/cpu-release/bin/deltatrain [--work FOLDER] [--rounds N]

Needs numpy and tokenizers, and datasets with pyarrow for the rows (left out with a note when they are missing); fetches
the megatron-core wheel with pip into the work folder. Exits with 1 at the first difference.
"""

import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

import numpy

import megatron_reference


def run(*arguments, expect=0):
    result = subprocess.run(arguments, capture_output=True, text=True)
    if result.returncode != expect:
        sys.exit(f"{' '.join(arguments)}\nexit code {result.returncode}, expected {expect}\n{result.stderr}")
    return result.stdout


def same(what, got, want):
    if got != want:
        sys.exit(f"{what}:\n got  {str(got)[:400]}\n want {str(want)[:400]}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


# Order: files of random lengths, split and blended in random ways.


def check_orders(program, megatron, work, rounds):
    rng = random.Random(1)
    compared = 0
    for number in range(rounds):
        prefixes = []
        for i in range(rng.choice([1, 1, 2, 3, 9])):
            prefix = os.path.join(work, f"order_{number}_{i}")
            documents = []
            for d in range(rng.randint(10, 60)):  # an empty part of a split keeps Megatron busy for ever
                start = 1000 * (100 * i + d)
                documents.append(list(range(start, start + rng.choice([1, 2, 3, 7, 20, rng.randint(1, 90)]))))
            megatron_reference.write(megatron, prefix, documents, 1 << 20)
            prefixes.append(prefix)
        weights = rng.random() < 0.5
        blend = prefixes
        if weights and len(prefixes) > 1:
            blend = [word for prefix in prefixes for word in (str(round(rng.uniform(0.1, 5), 2)), prefix)]
        elif len(prefixes) == 2:
            continue  # two words would be read as a weight and a prefix by Megatron
        split = rng.choice([None, "70,30,0", "8,1,1"])
        seq_length = rng.randint(2, 7)
        samples = rng.choice([1, 5, 17, 60, 200])
        seed = rng.randint(0, 99999)
        try:
            dataset = megatron_reference.datasets(megatron, blend, seq_length, seed, [samples, 1, 1], split,
                                                  tempfile.mkdtemp(dir=work))[0]
        except (AssertionError, IndexError, ValueError, ZeroDivisionError):
            continue  # too small for Megatron as well
        arguments = [program, "prepare", "--out", " ".join(blend), "--show-order", str(len(dataset)), "--seed", str(seed),
                     "--seq-length", str(seq_length), "--num-samples", str(samples)]
        if split is not None:
            arguments += ["--split", split]
        lines = run(*arguments).splitlines()[1:]
        got = [[int(word) for word in line.split("\t")[2].split()] for line in lines]
        want = [megatron_reference.tokens(dataset, k)[1][:seq_length].tolist() for k in range(len(dataset))]
        same(f"order {blend} split {split} T {seq_length} samples {samples} seed {seed}", got, want)
        compared += len(want)
    print(f"orders: {compared} samples of {rounds} random data sets equal Megatron's")


# Files: documents of random text through a tokenizer, to the byte.


def make_tokenizer(folder, texts, vocab_size, fillers):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<|bos|>", "<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    tokenizer.add_tokens([f"<filler {i}>" for i in range(fillers)])
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump({"bos_token": "<|bos|>", "eos_token": "<|end|>"}, file)
    return tokenizer


def random_text(rng):
    words = ["the", "of", "water", "\u00e9t\u00e9", "na\u00efve", "\u4e2d\u6587", "\U0001f44d", "12345", "it's", "\n", "\t", "  "]
    return " ".join(rng.choice(words) for _ in range(rng.randint(1, 200)))


def check_files(program, megatron, work):
    rng = random.Random(2)
    texts = [random_text(rng) for _ in range(700)]
    files = [os.path.join(work, name) for name in ("a.jsonl", "b.jsonl")]
    for name, part in zip(files, (texts[:500], texts[500:])):
        with open(name, "w") as file:
            for i, text in enumerate(part):
                file.write(json.dumps({"id": i, "text": text, "more": [1, {"text": "no"}]}, ensure_ascii=i % 2 == 0) + "\n")
    for label, fillers in (("16 bits", 0), ("32 bits", 66000)):
        folder = os.path.join(work, "tokenizer_" + label.split()[0])
        tokenizer = make_tokenizer(folder, texts, 400, fillers)
        count = tokenizer.get_vocab_size()
        documents = [tokenizer.encode(text).ids + [1] for text in texts]
        for partitions in (1, 4):
            out = os.path.join(work, f"files_{label.split()[0]}_{partitions}")
            run(program, "prepare", "--input", *files, "--tokenizer", folder, "--out", out, "--partitions", str(partitions),
                "--workers", "3")
            reference = out + "_reference"
            if partitions == 1:
                megatron_reference.write(megatron, reference, documents, count)
            else:
                builder = megatron.IndexedDatasetBuilder(reference + ".bin", dtype=megatron.DType.optimal_dtype(count))
                for i in range(partitions):
                    part = f"{reference}_{i}"
                    megatron_reference.write(megatron, part, documents[i::partitions], count)
                    for end in (".bin", ".idx"):
                        same(f"partition {i}{end}", read(f"{out}_{i}_text_document{end}"), read(part + end))
                    builder.add_index(part)
                builder.finalize(reference + ".idx")
            for end in (".bin", ".idx"):
                same(f"{label}, {partitions} partitions, {end}", read(out + "_text_document" + end), read(reference + end))
    print(f"files: {len(texts)} documents in 16 and 32 bits, 1 and 4 partitions equal Megatron's to the byte")


# Empty texts, kept: Megatron writes a document without a sequence where the tokenizer gives nothing.


def check_empty(program, megatron, work):
    texts = ["one two", "", "three", "", ""]
    source = os.path.join(work, "empty.jsonl")
    with open(source, "w") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    folder = os.path.join(work, "tokenizer_empty")
    tokenizer = make_tokenizer(folder, texts, 300, 0)
    for special in (True, False):
        out = os.path.join(work, f"empty_{special}")
        builder = megatron.IndexedDatasetBuilder(out + "_reference.bin", dtype=megatron.DType.optimal_dtype(300))
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=special).ids
            ids = ids + [1] if ids else []
            builder.add_document(numpy.array(ids, dtype=numpy.int64), [len(ids)] if ids else [])
        builder.finalize(out + "_reference.idx")
        for partitions in ("1", "2"):
            run(program, "prepare", "--input", source, "--tokenizer", folder, "--out", out, "--empty", "keep", "--overwrite",
                "--partitions", partitions, "--special-tokens" if special else "--no-special-tokens")
            if partitions == "1":
                for end in (".bin", ".idx"):
                    same(f"empty texts{end}", read(out + "_text_document" + end), read(out + "_reference" + end))
    print("files: empty texts, with and without BOS, equal Megatron's to the byte")


# Rows: the data set that datasets.map and save_to_disk make, row by row; ours opened by datasets and pyarrow, and theirs
# read by us.


def check_rows(program, work, rounds):
    try:
        import datasets
        import pyarrow
    except ImportError as missing:
        print(f"rows: SKIPPED, {missing.name} is not installed")
        return
    datasets.disable_progress_bars()
    rng = random.Random(3)
    texts = [random_text(rng) if rng.random() > 0.05 else "" for _ in range(997)]
    folder = os.path.join(work, "tokenizer_rows")
    tokenizer = make_tokenizer(folder, texts, 400, 0)
    source = os.path.join(work, "rows_input")
    rows = 0
    for number in range(rounds):
        count = rng.choice([1, 3, 50, 200, 997])
        length = rng.choice([8, 33, 64])
        processes = rng.choice([1, 2, 7, 64])
        batch = rng.choice([1, 16, 100, 2048])
        seed = rng.choice([42, 0, 123456])
        raw = datasets.Dataset.from_dict({"n": list(range(count)), "text": texts[:count]})
        raw.save_to_disk(source, num_shards=min(3, count))

        def cut(part):
            ids = [id for text in part["text"] for id in tokenizer.encode(text).ids]
            return {"input_ids": [ids[i:i + length] for i in range(0, len(ids) // length * length, length)]}

        # datasets.map with several processes cuts the list as num_shards does here, in one process.
        shuffled = raw.shuffle(seed=seed)
        shards = min(processes, count)
        mapped = datasets.concatenate_datasets([
            shuffled.shard(num_shards=shards, index=i, contiguous=True).map(
                cut, batched=True, batch_size=batch, remove_columns=raw.column_names,
                features=datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))}))
            for i in range(shards)])
        want = mapped["input_ids"][:]
        out = os.path.join(work, f"rows_{number}")
        arguments = [program, "prepare", "--layout", "fla", "--input", source, "--tokenizer", folder, "--out", out, "--seq-length",
                     str(length), "--map-processes", str(processes), "--map-batch-size", str(batch), "--seed", str(seed), "--overwrite"]
        if not want:
            run(*arguments, expect=2)
            continue
        run(*arguments)
        ours = datasets.load_from_disk(out)
        same(f"rows of round {number}", ours["input_ids"][:], want)
        same("features", str(ours.features), str(mapped.features))
        theirs = out + "_theirs"
        mapped.save_to_disk(theirs, num_shards=min(len(want), max(int(mapped.data.nbytes / 500e6) + 1, processes)))
        names = lambda path: sorted(os.path.basename(name) for name in glob.glob(path + "/*.arrow"))
        same("files", names(out), names(theirs))
        for name in names(out):
            with pyarrow.OSFile(os.path.join(out, name)) as a, pyarrow.OSFile(os.path.join(theirs, name)) as b:
                a, b = pyarrow.ipc.open_stream(a), pyarrow.ipc.open_stream(b)
                same("schema", a.schema, b.schema)
                same("schema metadata", a.schema.metadata, b.schema.metadata)
                a, b = a.read_all(), b.read_all()
                a.validate(full=True)
                same("table of " + name, a.equals(b), True)
        files = []
        for label, path in (("ours", out), ("theirs", theirs)):
            prefix = os.path.join(work, f"converted_{number}_{label}")
            run(program, "prepare", "--convert", "--input", path, "--out", prefix, "--index-form", "fla", "--overwrite")
            files.append((read(prefix + ".bin"), read(prefix + ".idx")))
        same("conversion", files[0], files[1])
        same("converted ids", numpy.frombuffer(files[0][0], dtype="<i4").reshape(-1, length).tolist(), want)
        lengths = numpy.full(len(want), length, dtype=numpy.int32)
        pointers = numpy.arange(len(want), dtype=numpy.int64) * length * 4
        documents = numpy.arange(1, len(want) + 1, dtype=numpy.int64)
        header = b"MMIDIDX\0\0" + numpy.array([1], "<u8").tobytes() + b"\4" + numpy.array([len(want)] * 2, "<u8").tobytes()
        same("converted index", files[0][1], header + lengths.tobytes() + pointers.tobytes() + documents.tobytes())
        rows += len(want)
    print(f"rows: {rows} rows of {rounds} random settings equal those of datasets {datasets.__version__}")


# Parquet as pyarrow writes it, in every compression and page form.


def check_parquet(program, work):
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as missing:
        print(f"parquet: SKIPPED, {missing.name} is not installed")
        return
    rng = random.Random(4)
    texts = [random_text(rng) if rng.random() > 0.05 else "" for _ in range(3000)]
    folder = os.path.join(work, "tokenizer_parquet")
    make_tokenizer(folder, texts, 400, 0)
    plain = os.path.join(work, "parquet.jsonl")
    with open(plain, "w") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    reference = os.path.join(work, "parquet_reference")
    run(program, "prepare", "--input", plain, "--tokenizer", folder, "--out", reference)
    table = pyarrow.table({"id": [str(i) for i in range(len(texts))], "text": texts, "score": [i / 7 for i in range(len(texts))],
                           "tags": [["a"] * (i % 3) for i in range(len(texts))]})
    source = os.path.join(work, "table.parquet")
    out = os.path.join(work, "parquet_out")
    parquet.write_table(table, source)
    probe = subprocess.run([program, "prepare", "--input", source, "--tokenizer", folder, "--out", out], capture_output=True, text=True)
    if "built without Arrow" in probe.stderr:
        same("exit code without Arrow C++", probe.returncode, 2)
        print("parquet: SKIPPED, the program was built without Arrow C++")
        return
    forms = 0
    for compression in ("zstd", "snappy", "gzip", "none"):
        for options in ({}, {"row_group_size": 100}, {"use_dictionary": False, "data_page_size": 2000},
                        {"data_page_version": "2.0", "row_group_size": 777}, {"column_encoding": "DELTA_BYTE_ARRAY", "use_dictionary": False},
                        {"column_encoding": "DELTA_LENGTH_BYTE_ARRAY", "use_dictionary": False, "row_group_size": 50}):
            written = table.select(["text", "id"]) if "column_encoding" in options else table
            if forms % 2:
                written = written.set_column(written.column_names.index("text"), "text", written["text"].cast(pyarrow.large_string()))
            parquet.write_table(written, source, compression=compression, **options)
            run(program, "prepare", "--input", source, "--tokenizer", folder, "--out", out, "--overwrite", "--workers", "3")
            for end in (".bin", ".idx"):
                same(f"Parquet {compression} {options} {end}", read(out + "_text_document" + end), read(reference + "_text_document" + end))
            forms += 1

    def refused(path, *wanted, more=()):
        result = subprocess.run([program, "prepare", "--input", path, "--tokenizer", folder, "--out", out, "--overwrite", *more],
                                capture_output=True, text=True)
        same(f"exit code for {path} {more}: {result.stderr}", result.returncode, 2)
        lines = [line for line in result.stderr.splitlines() if "error" in line.lower() or path in line]
        same(f"lines of the refusal of {path}: {result.stderr}", len(lines), 1)
        for text in wanted:
            same(f"{text!r} in {lines[0]!r}", text in lines[0], True)

    whole = read(source)
    refused(source, "column body", "text", more=("--text-column", "body"))
    parquet.write_table(table, source, row_group_size=1000)
    whole = read(source)
    refused(source, "column score", "DOUBLE", more=("--text-column", "score"))
    refused(source, "column tags", more=("--text-column", "tags.list.element"))
    nulls = os.path.join(work, "nulls.parquet")
    parquet.write_table(pyarrow.table({"text": ["a"] * 1500 + [None] + ["b"] * 10}), nulls, row_group_size=1000)
    refused(nulls, "row 1500", "null")
    printed = run(program, "prepare", "--input", nulls, "--tokenizer", folder, "--out", out, "--overwrite", "--bad-documents", "skip")
    same("documents beside a null", printed.split()[0], "1510")
    other = os.path.join(work, "other.parquet")
    parquet.write_table(pyarrow.table({"text": [1, 2]}), other)
    result = subprocess.run([program, "prepare", "--input", source, other, "--tokenizer", folder, "--out", out, "--overwrite"],
                            capture_output=True, text=True)
    same("mixed schemas: " + result.stderr, (result.returncode, "other.parquet: column text: expected a text, got INT64" in result.stderr), (2, True))

    # Cut off, and with every kind of lie in the footer or the pages: a refusal or the same tokens, never a crash.
    damaged = os.path.join(work, "damaged.parquet")
    refusals = 0
    for number in range(400):
        data = bytearray(whole)
        if number < 40:
            data = data[:len(data) * number // 40]
        else:
            footer = int.from_bytes(whole[-8:-4], "little")
            for _ in range(rng.choice([1, 1, 3])):
                place = rng.randrange(len(data) - footer - 8, len(data)) if number % 2 else rng.randrange(len(data))
                data[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        with open(damaged, "wb") as file:
            file.write(data)
        result = subprocess.run([program, "prepare", "--input", damaged, "--tokenizer", folder, "--out", out, "--overwrite"],
                                capture_output=True, text=True)
        if result.returncode not in (0, 2) or (number < 40 and result.returncode == 0):
            sys.exit(f"damaged Parquet, round {number}: exit code {result.returncode}\n{result.stderr}")
        if result.returncode == 2:
            refusals += 1
            if "damaged.parquet" not in result.stderr:
                sys.exit(f"damaged Parquet, round {number}: the file is not named\n{result.stderr}")
    print(f"parquet: {forms} forms equal the same text in JSON lines; 400 damaged files: {refusals} refused, none crashed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--work", default=None)
    parser.add_argument("--megatron", default=None, help="folder of an unpacked megatron-core wheel")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", nargs="*", default=[], help="of rows, parquet, files, empty, orders")
    options = parser.parse_args()
    work = options.work or tempfile.mkdtemp()
    os.makedirs(work, exist_ok=True)
    numpy.seterr(all="ignore")
    loaded = []

    def megatron():  # puts a stand-in for torch where `datasets` would find it: so after the rows
        if not loaded:
            loaded.append(megatron_reference.load(options.megatron or megatron_reference.fetch(work)))
        return loaded[0]

    checks = {
        "rows": lambda: check_rows(options.program, work, min(options.rounds, 25)),
        "parquet": lambda: check_parquet(options.program, work),
        "files": lambda: check_files(options.program, megatron(), work),
        "empty": lambda: check_empty(options.program, megatron(), work),
        "orders": lambda: check_orders(options.program, megatron(), work, options.rounds),
    }
    for name, check in checks.items():
        if not options.only or name in options.only:
            check()


if __name__ == "__main__":
    main()
