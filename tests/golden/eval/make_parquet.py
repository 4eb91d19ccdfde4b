"""Writes the documents of harness_facts.jsonl beside it as Parquet, as data sets are stored (pyarrow 26.0.1).

Takes no arguments. One file a task, each with its own compression, pages and row groups, and with columns that no task
reads: among them some of types that JSON has no form for.
"""

import datetime
import json
import os

import pyarrow as pa
import pyarrow.parquet

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT, LIST = pa.string(), pa.list_(pa.string())
CHOICES = pa.struct([("text", LIST), ("label", LIST)])
TYPES = {
    "arc_easy": {"id": TEXT, "question": TEXT, "choices": CHOICES, "answerKey": TEXT},
    "hellaswag": {"ind": pa.int32(), "endings": LIST},
    "piqa": {"label": pa.int64()},
    "winogrande": {},
    "race": {},
    "mmlu_abstract_algebra": {"choices": LIST, "answer": pa.int64(), "subject": pa.dictionary(pa.int8(), TEXT)},
}
OPTIONS = {
    "arc_easy": {"compression": "snappy"},
    "hellaswag": {"compression": "zstd", "row_group_size": 2},
    "piqa": {"compression": "gzip", "data_page_version": "2.0"},
    "winogrande": {"compression": "none", "use_dictionary": False},
    "race": {"compression": "snappy", "row_group_size": 1},
    "mmlu_abstract_algebra": {"compression": "zstd", "use_dictionary": False},
}


def main():
    documents = {}
    with open(os.path.join(HERE, "harness_facts.jsonl"), encoding="utf-8") as file:
        for line in file:
            fact = json.loads(line)
            if fact["kind"] == "doc":
                documents.setdefault(fact["task"], []).append(fact["doc"])
    for task, types in TYPES.items():
        rows = documents[task]
        columns = {name: pa.array([row[name] for row in rows], types.get(name, TEXT)) for name in rows[0]}
        if task == "piqa":
            columns["picture"] = pa.array([b"\xff\x00"] * len(rows), pa.binary())
            columns["seen"] = pa.array([datetime.datetime(2026, 11, 30)] * len(rows), pa.timestamp("us"))
        pa.parquet.write_table(pa.table(columns), os.path.join(HERE, task + ".parquet"), write_statistics=False,
                               **OPTIONS[task])


main()
