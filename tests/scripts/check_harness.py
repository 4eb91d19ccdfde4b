#!/usr/bin/env python3
"""lm-evaluation-harness itself against `serve`, and its scores against those of `eval`.

    check_harness.py --program deltatrain --lm-eval VENV/bin/lm_eval --work DIR

Makes a tokenizer, two small models and documents of the shape of five tasks, scores them with `eval`, then lets the
harness score the same documents through the server as its client `local-completions`, with its own task definitions
on the local files. Every log-likelihood has to be within 1e-4 of eval's, every is-greedy flag and every metric equal.
Ends with one line a model and the exit code 0 where all holds.
"""
import argparse
import glob
import json
import math
import os
import random
import shutil
import subprocess
import sys

TOLERANCE = 1e-4

SUBJECTS = ["The miller", "A heron", "My neighbour", "The old engine", "Their teacher", "Zo\u00eb", "The harbour master"]
VERBS = ["mends", "counts", "paints", "follows", "forgets", "carries"]
OBJECTS = ["the nets", "a broken clock", "seven boats", "the longest road", "his own shadow", "letters from \u0141\u00f3d\u017a"]
PLACES = ["by the river", "in the morning", "before it rains", "without a word", "on Sundays", "for 12 days"]


def sentence(rng):
    return f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)} {rng.choice(PLACES)}."


def choices(rng, count):
    return [f"{rng.choice(VERBS)} {rng.choice(OBJECTS)} {rng.choice(PLACES)}" for _ in range(count)]


def documents(rng):
    """Per task: folder of the data set below --data, file, rows."""
    arc, hellaswag, winogrande, lambada, wikitext = [], [], [], [], []
    for i in range(30):
        count = rng.choice([3, 4, 4, 4, 5])
        labels = list("ABCDE"[:count]) if i % 3 else [str(n + 1) for n in range(count)]
        arc.append({"id": str(i), "question": "What does " + sentence(rng)[:-1] + " mean?",
                    "choices": {"text": choices(rng, count), "label": labels}, "answerKey": rng.choice(labels)})
    for i in range(24):
        marks = ["", "[header] ", "[step] "][i % 3]
        hellaswag.append({
            "ind": i, "activity_label": rng.choice(["Fishing", "Home and Garden"]), "ctx_a": marks + sentence(rng),
            "ctx_b": "" if i % 4 == 0 else "then THE crew", "ctx": "", "source_id": "x", "split": "val",
            "split_type": "indomain", "label": str(rng.randrange(4)),
            "endings": [text + (" [title] " if i % 5 == 0 else "") + "." for text in choices(rng, 4)]})
    for i in range(30):
        names = rng.sample(SUBJECTS, 2)
        winogrande.append({"sentence": f"{sentence(rng)} So _ {rng.choice(VERBS)} {rng.choice(OBJECTS)}.",
                           "option1": names[0], "option2": names[1], "answer": str(1 + i % 2)})
    for _ in range(30):
        lambada.append({"text": " ".join(sentence(rng) for _ in range(3))[:-1]})
    for i in range(6):  # some longer than the model's window
        wikitext.append({"page": "= Boats =\n\n " + " ".join(sentence(rng) for _ in range(8 + 25 * i)) + "\n"})
    return {
        "arc_easy": ("allenai/ai2_arc/ARC-Easy", "test", arc),
        "hellaswag": ("Rowan/hellaswag/data", "validation", hellaswag),
        "winogrande": ("allenai/winogrande/winogrande_xl", "validation", winogrande),
        "lambada_openai": ("EleutherAI/lambada_openai/default", "test", lambada),
        "wikitext": ("EleutherAI/wikitext_document_level/wikitext-2-raw-v1", "test", wikitext),
    }


def write_tasks(work, lm_eval, tasks):
    """YAML files that are the harness's own tasks on local files. Returns their folder and names."""
    python = os.path.join(os.path.dirname(lm_eval), "python")
    own = subprocess.run([python, "-c", "import lm_eval.tasks as t; print(t.__path__[0])"], check=True,
                         capture_output=True, text=True).stdout.strip()
    folder = os.path.join(work, "tasks")
    os.makedirs(folder, exist_ok=True)
    for name, (path, split, rows) in tasks.items():
        data = os.path.join(work, "data", path, f"{split}-00000-of-00001.jsonl")
        os.makedirs(os.path.dirname(data), exist_ok=True)
        with open(data, "w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        found = [p for p in glob.glob(os.path.join(own, "**", "*.yaml"), recursive=True)
                 if f"\ntask: {name}\n" in "\n" + open(p, encoding="utf-8").read()]
        if len(found) != 1:
            raise SystemExit(f"check_harness: {name}: expected one task definition, got {found}")
        splits = {s: "null" for s in ("training_split", "validation_split", "test_split")}
        splits["test_split" if split == "test" else "validation_split"] = split
        with open(os.path.join(folder, f"local_{name}.yaml"), "w", encoding="utf-8") as file:
            file.write(f"include: {found[0]}\ntask: local_{name}\ntag: null\ndataset_path: json\ndataset_name: null\n"
                       f"dataset_kwargs:\n  data_files:\n    {split}: {data}\n"
                       + "".join(f"{key}: {value}\n" for key, value in splits.items()))
    return folder


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise SystemExit(f"check_harness: {' '.join(command)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def only(pattern):
    found = glob.glob(pattern, recursive=True)
    if len(found) != 1:
        raise SystemExit(f"check_harness: {pattern}: expected one file, got {found}")
    return found[0]


def samples(folder, task):
    with open(only(os.path.join(folder, "**", f"samples_{task}_2*.jsonl")), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {row["doc_id"]: row for row in rows}


def scores(row):
    """[(log-likelihood, is greedy)] of a document; windows of a rolling task are one sum."""
    result = []
    for response in row["filtered_resps"]:
        if isinstance(response, (list, tuple)):
            result.append((float(response[0]), str(response[1])))
        else:
            result.append((float(response), ""))
    return result


def compare(name, ours, theirs, tasks):
    problems, count, largest = [], 0, 0.0
    for task in tasks:
        mine, other = samples(ours, task), samples(theirs, f"local_{task}")
        if mine.keys() != other.keys() or not mine:
            problems.append(f"{task}: documents {sorted(mine)} and {sorted(other)}")
            continue
        for document in mine:
            a, b = scores(mine[document]), scores(other[document])
            if len(a) != len(b):
                problems.append(f"{task} {document}: {len(a)} and {len(b)} scores")
                continue
            for (x, x_greedy), (y, y_greedy) in zip(a, b):
                count += 1
                largest = max(largest, abs(x - y))
                if not abs(x - y) <= TOLERANCE or x_greedy != y_greedy:
                    problems.append(f"{task} {document}: {x} {x_greedy} and {y} {y_greedy}")
            for metric in ("acc", "acc_norm"):
                if metric in other[document] and mine[document].get(metric) != other[document][metric]:
                    problems.append(f"{task} {document}: {metric}")
    results = [json.load(open(only(os.path.join(folder, "**", "results_*.json")), encoding="utf-8"))["results"]
               for folder in (ours, theirs)]
    for task in tasks:
        for key, value in results[0][task].items():
            if not isinstance(value, float) or "stderr" in key:
                continue
            other = results[1][f"local_{task}"][key]
            is_count = key.startswith("acc")
            if value != other if is_count else not math.isclose(value, other, rel_tol=1e-5):
                problems.append(f"{task}: {key}: {value} and {other}")
    for problem in problems[:20]:
        print(f"check_harness: {name}: {problem}")
    print(f"{name}: {count} log-likelihoods, largest difference {largest:.2e}, {len(problems)} problems")
    return not problems and count > 200


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--lm-eval", required=True)
    parser.add_argument("--work", required=True)
    args = parser.parse_args()
    program, lm_eval, work = (os.path.abspath(p) for p in (args.program, args.lm_eval, args.work))
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    rng = random.Random(5)
    tasks = documents(rng)
    folder = write_tasks(work, lm_eval, tasks)
    text = os.path.join(work, "text.txt")
    with open(text, "w", encoding="utf-8") as file:
        file.write("\n".join(sentence(rng) for _ in range(3000)) + "\n")
    tokenizer = os.path.join(work, "tokenizer")
    run([program, "tokenizer", "train", "--input", text, "--vocab-size", "400", "--out", tokenizer])

    ok = True
    for recipe in ("gdn", "kda_mla"):
        model = os.path.join(work, recipe)
        # Large weights, as an untrained model's scores would all but tie.
        run([program, "init", "--recipe", f"recipes/smoke/{recipe}.yaml", "--set", "model.vocab_size=448",
             "--set", "model.initializer_range=0.2", "--set", "model.max_position_embeddings=512", "--out", model])
        ours, theirs = os.path.join(work, f"{recipe}-eval"), os.path.join(work, f"{recipe}-harness")
        run([program, "eval", "--model", model, "--tokenizer", tokenizer, "--data", os.path.join(work, "data"),
             "--tasks", ",".join(tasks), "--log-samples", "--bootstrap-iters", "0", "--out", ours])
        server = subprocess.Popen([program, "serve", "--model", model, "--tokenizer", tokenizer, "--port", "0"],
                                  stdout=subprocess.PIPE, text=True)
        try:
            address = server.stdout.readline().strip()
            environment = dict(os.environ, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
                               HF_HOME=os.path.join(work, "hf"), TOKENIZERS_PARALLELISM="false")
            run([lm_eval, "run", "--model", "local-completions", "--model_args",
                 f"model={recipe},base_url={address}/v1/completions,tokenizer={tokenizer},"
                 "tokenizer_backend=huggingface,add_bos_token=True,max_length=514,num_concurrent=4",
                 "--batch_size", "8", "--include_path", folder, "--tasks",
                 ",".join(f"local_{task}" for task in tasks), "--output_path", theirs, "--log_samples"],
                env=environment)
        finally:
            server.terminate()
            code = server.wait(timeout=60)
        if code != 128 + 15:
            print(f"check_harness: serve: expected exit code 143 after SIGTERM, got {code}")
            ok = False
        ok = compare(recipe, ours, theirs, tasks) and ok
    sys.exit(0 if ok else 1)


main()
