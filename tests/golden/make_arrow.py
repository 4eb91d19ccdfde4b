"""Writes the arrow_*.arrow and table_*.parquet files beside it (datasets 5.2.0, pyarrow 26.0.1). Takes no arguments."""

import os
import shutil
import tempfile

import datasets
import pyarrow as pa
import pyarrow.parquet

HERE = os.path.dirname(os.path.abspath(__file__))


def at(name):
    return os.path.join(HERE, name)


def tokens():
    rows = [[100 * i + j for j in range(5)] for i in range(7)]
    features = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("int32"))})
    folder = tempfile.mkdtemp()
    datasets.Dataset.from_dict({"input_ids": rows}, features=features).save_to_disk(folder)
    shutil.copy(os.path.join(folder, "data-00000-of-00001.arrow"), at("arrow_tokens.arrow"))
    shutil.rmtree(folder)


def wide():
    schema = pa.schema([
        ("meta", pa.struct([("url", pa.string()), ("scores", pa.list_(pa.float64()))])),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("input_ids", pa.large_list(pa.int64())),
        ("flag", pa.bool_()),
    ])
    batches = [
        [{"meta": {"url": "a", "scores": [1.0, 2.0]}, "kind": "x", "input_ids": [1, 2, 3], "flag": True},
         {"meta": None, "kind": "y", "input_ids": [], "flag": None}],
        [{"meta": {"url": None, "scores": None}, "kind": None, "input_ids": [7, 128255], "flag": False},
         {"meta": {"url": "d", "scores": []}, "kind": "x", "input_ids": None, "flag": False},
         {"meta": {"url": "e", "scores": [3.0]}, "kind": "y", "input_ids": [1 << 40], "flag": False}],
    ]
    with pa.ipc.new_stream(at("arrow_wide.arrow"), schema) as writer:
        for rows in batches:
            writer.write_table(pa.Table.from_pylist(rows, schema))


def text():
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("long_text", pa.large_string()),
                        ("rows", pa.list_(pa.int32(), 2))])
    rows = [{"id": "1", "text": "one", "long_text": "first", "rows": [1, 2]},
            {"id": "2", "text": None, "long_text": "", "rows": [3, 4]},
            {"id": "3", "text": "", "long_text": None, "rows": [5, 6]},
            {"id": "4", "text": "vier \u00e9\U0001f44d", "long_text": "last", "rows": [7, 8]}]
    table = pa.Table.from_pylist(rows, schema)
    with pa.ipc.new_file(at("arrow_text.arrow"), schema) as writer:
        writer.write_table(table.slice(0, 3))
        writer.write_table(table.slice(3, 1))
    with pa.ipc.new_stream(at("arrow_zstd.arrow"), schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)


def parquet():
    texts = [f"text {i} \u00e9" * (i % 5) if i % 7 != 3 else None for i in range(60)]
    table = pa.table({"id": [str(i) for i in range(60)], "text": texts, "score": [i / 2 for i in range(60)],
                      "tags": [["a"] * (i % 3) for i in range(60)]})
    pa.parquet.write_table(table, at("table_zstd.parquet"), compression="zstd", row_group_size=25, write_statistics=False)
    pa.parquet.write_table(table, at("table_snappy.parquet"), compression="snappy", use_dictionary=False, data_page_version="2.0",
                           write_statistics=False)


tokens()
wide()
parquet()
text()
