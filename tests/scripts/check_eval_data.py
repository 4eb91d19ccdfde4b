#!/usr/bin/env python3
"""Data sets of `eval` as pyarrow writes them, against JSON lines of the same rows.

    check_eval_data.py --program deltatrain --work DIR

Makes the eight tasks of the usual suite at full size (make_eval_suite.py) and lambada and wikitext, and stores every file
again as Parquet under the name that it has in its repository, in changing compressions, page forms, row groups, numbers
of parts and types of text. A small model scores the first documents of both: samples, metrics and hashes have to be
the same, zero- and few-shot. Then files that lack a column, have one of another type, or are damaged: one line that names
file and column, exit code 2. Exit code 77 without pyarrow or a program that reads Parquet.
"""
import argparse
import glob
import json
import os
import random
import shutil
import subprocess
import sys

SUITE = ["arc_easy", "arc_challenge", "hellaswag", "openbookqa", "piqa", "winogrande", "race", "mmlu"]
# Files whose names in the repository are not FOLDER/SPLIT-00000-of-00001.parquet.
NAMES = {"baber/piqa": "piqa_{split}", "Rowan/hellaswag": "data/{split}-00000-of-00001"}
OPTIONS = [{}, {"compression": "zstd", "row_group_size": 100}, {"compression": "gzip", "use_dictionary": False},
           {"compression": "none", "data_page_version": "2.0", "data_page_size": 4000},
           {"compression": "snappy", "row_group_size": 7}]


def run(command, want=0):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != want:
        sys.exit(f"check_eval_data: {' '.join(command)}: exit code {done.returncode}, expected {want}\n{done.stderr[-3000:]}")
    return done


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def store(rows, path, number, pyarrow, parquet):
    """As a table with the row's columns in their order; every third with large texts and dictionaries."""
    table = pyarrow.Table.from_pylist(rows)
    for i, field in enumerate(table.schema):
        if pyarrow.types.is_string(field.type) and number % 3 == 1:
            table = table.set_column(i, field.name, table[field.name].cast(pyarrow.large_string()))
        if pyarrow.types.is_string(field.type) and number % 3 == 2:
            table = table.set_column(i, field.name, table[field.name].dictionary_encode())
    os.makedirs(os.path.dirname(path), exist_ok=True)
    parts = 1 + number % 2 if path.endswith("-00000-of-00001.parquet") else 1
    for part in range(parts):
        begin, end = len(rows) * part // parts, len(rows) * (part + 1) // parts
        name = path.replace("-00000-of-00001.parquet", f"-{part:05d}-of-{parts:05d}.parquet")
        parquet.write_table(table.slice(begin, end - begin), name, **OPTIONS[number % len(OPTIONS)])


def only(folder, pattern):
    found = glob.glob(os.path.join(folder, "**", pattern), recursive=True)
    if len(found) != 1:
        sys.exit(f"check_eval_data: {folder}: expected one {pattern}, got {found}")
    return found[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--work", required=True)
    options = parser.parse_args()
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        print("eval data: SKIPPED, pyarrow is not installed")
        sys.exit(77)
    program, work = os.path.abspath(options.program), os.path.abspath(options.work)
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    here = os.path.dirname(os.path.abspath(__file__))
    run([sys.executable, os.path.join(here, "make_eval_suite.py"), "--program", program, "--out", work])
    lines, tables = os.path.join(work, "datasets"), os.path.join(work, "tables")

    rng = random.Random(3)
    with open(os.path.join(work, "text", "words.txt"), encoding="utf-8") as file:
        text = [next(file).strip() for _ in range(400)]
    extra = {"EleutherAI/lambada_openai/default/test": [{"text": line} for line in text[:40]],
             "EleutherAI/wikitext_document_level/wikitext-2-raw-v1/test": [{"page": " " + line + "\n"} for line in text[40:50]]}
    # Train and dev splits, for examples: some rows of the scored ones.
    for path in glob.glob(os.path.join(lines, "**", "*.jsonl"), recursive=True):
        name = os.path.relpath(path, lines)[:-len(".jsonl")]
        folder, split = os.path.split(name)
        if split in ("test", "validation"):
            extra[os.path.join(folder, "dev" if folder.startswith("cais") else "train")] = rows_of(path)[-20:]
    for name, rows in extra.items():
        os.makedirs(os.path.dirname(os.path.join(lines, name)), exist_ok=True)
        with open(os.path.join(lines, name + ".jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=rng.random() < 0.5) + "\n" for row in rows)
    files = 0
    for path in sorted(glob.glob(os.path.join(lines, "**", "*.jsonl"), recursive=True)):
        folder, split = os.path.split(os.path.relpath(path, lines)[:-len(".jsonl")])
        name = NAMES.get(folder, "{split}-00000-of-00001").format(split=split)
        store(rows_of(path), os.path.join(tables, folder, name + ".parquet"), files, pyarrow, parquet)
        files += 1

    tokenizer, model = os.path.join(work, "tokenizer"), os.path.join(work, "model")
    words = os.path.join(work, "few.txt")
    with open(words, "w", encoding="utf-8") as file:
        file.write("\n".join(text) + "\n")
    run([program, "tokenizer", "train", "--input", words, "--vocab-size", "1000", "--out", tokenizer])
    run([program, "init", "--recipe", "recipes/smoke/gdn.yaml", "--set", "model.vocab_size=1024", "--set",
         "model.initializer_range=0.2", "--out", model])
    evaluate = [program, "eval", "--model", model, "--tokenizer", tokenizer, "--limit", "2", "--bootstrap-iters", "0"]
    compared = 0
    for shots, tasks in (("0", SUITE + ["lambada_openai", "wikitext"]), ("2", SUITE)):
        results = []
        for form, data in (("lines", lines), ("tables", tables)):
            out = os.path.join(work, f"{form}-{shots}")
            done = subprocess.run(evaluate + ["--tasks", ",".join(tasks), "--data", data, "--num-fewshot", shots, "--out", out,
                                              "--log-samples"], capture_output=True, text=True)
            if "built without Arrow" in done.stderr and done.returncode == 2:
                print("eval data: SKIPPED, the program was built without Arrow C++")
                sys.exit(77)
            if done.returncode != 0:
                sys.exit(f"check_eval_data: {form}, {shots} examples: exit code {done.returncode}\n{done.stderr[-3000:]}")
            with open(only(out, "results_*.json"), encoding="utf-8") as file:
                results.append((out, json.load(file)))
        (out, one), (other_out, other) = results
        for key in ("results", "task_hashes", "n-samples", "versions"):
            if one[key] != other[key]:
                sys.exit(f"check_eval_data: {shots} examples: {key} differ")
        for task in one["task_hashes"]:
            pair = []
            for folder in (out, other_out):
                with open(only(folder, f"samples_{task}_2*.jsonl"), encoding="utf-8") as file:
                    pair.append(file.read())
            if pair[0] != pair[1] or not pair[0]:
                sys.exit(f"check_eval_data: samples of {task} with {shots} examples differ")
            compared += pair[0].count("\n")

    # What is no data set of the task.
    bad = os.path.join(work, "bad")
    path = os.path.join(bad, "baber/piqa/piqa_validation.parquet")
    os.makedirs(os.path.dirname(path))
    rows = rows_of(os.path.join(lines, "baber/piqa/validation.jsonl"))[:50]
    good = {name: [row[name] for row in rows] for name in rows[0]}
    small = [program, "eval", "--model", model, "--tokenizer", tokenizer, "--tasks", "piqa", "--data", bad]

    def refused(columns, *wanted):
        parquet.write_table(pyarrow.table(columns), path)
        error = run(small, 2).stderr.splitlines()
        if len(error) != 1 or any(text not in error[0] for text in ("piqa_validation.parquet: ",) + wanted):
            sys.exit(f"check_eval_data: expected {wanted} in one line, got {error}")

    refused({name: good[name] for name in good if name != "sol2"}, "column sol2: expected this column, got only goal, sol1, label")
    refused({**good, "goal": pyarrow.array([b"x"] * 50, pyarrow.binary())}, "column goal: expected texts, numbers", "got binary")
    refused({**good, "goal": list(range(50))}, "row 1: goal: expected a string, got number")
    refused({**good, "sol1": [["a"]] * 50}, "row 1: sol1: expected a string, got array")
    refused({**good, "label": [0.5] * 50}, "row 1: label: expected a whole number from 0 to 1, got 0.5")
    refused({**good, "label": [0, 1, None] + [0] * 47}, "row 3: label: expected a whole number from 0 to 1, got null")
    refused({**good, "label": [7] * 50}, "label: expected a whole number from 0 to 1, got 7")
    parquet.write_table(pyarrow.table(good), path)
    with open(path, "rb") as file:
        whole = file.read()
    refusals = 0
    for number in range(60):
        data = bytearray(whole)
        if number < 10:
            data = data[:len(data) * number // 10]
        else:
            for _ in range(rng.choice([1, 3])):
                data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        with open(path, "wb") as file:
            file.write(data)
        done = subprocess.run(small, capture_output=True, text=True)
        if done.returncode not in (0, 2) or (number < 10 and done.returncode == 0):
            sys.exit(f"check_eval_data: damaged file {number}: exit code {done.returncode}\n{done.stderr}")
        if done.returncode == 2:
            refusals += 1
            if "piqa_validation.parquet" not in done.stderr:
                sys.exit(f"check_eval_data: damaged file {number}: the file is not named\n{done.stderr}")
    print(f"eval data: {compared} samples from {files} Parquet files equal those from JSON lines; 7 wrong files refused by "
          f"column; 60 damaged files: {refusals} refused, none crashed")


main()
