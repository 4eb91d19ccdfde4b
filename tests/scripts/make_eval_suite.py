"""Writes the eight tasks of the usual zero-shot suite at their full size, with invented texts: for measuring how long
an evaluation takes where the data sets are not at hand.

    python make_eval_suite.py --program build/cpu-release/bin/deltatrain --out FOLDER [--seed 1]

Numbers of documents and choices are those of the data sets (`eval --list`). Texts are words drawn from a Zipf
distribution over invented words; their lengths are log-normal, with the means below, in words, set so that a document
takes about the bytes that its data set's files say. FOLDER/datasets is for `eval --data`, FOLDER/text/words.txt for
`tokenizer train`. The same seed gives the same bytes.
"""

import argparse
import bisect
import itertools
import json
import math
import os
import random
import re
import subprocess

CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"
NUM_WORDS = 30000
SUITE = ("arc_easy", "arc_challenge", "hellaswag", "openbookqa", "piqa", "winogrande", "race")
# Questions of mmlu that are much longer than the others; means in words of question and choice.
LONG_SUBJECTS = {
    "professional_law": (170, 28), "high_school_european_history": (230, 12), "high_school_us_history": (200, 14),
    "high_school_world_history": (220, 13), "professional_medicine": (110, 4), "security_studies": (20, 30),
    "moral_scenarios": (60, 3), "professional_accounting": (50, 6), "college_medicine": (45, 6),
    "professional_psychology": (28, 8), "high_school_statistics": (50, 12), "high_school_computer_science": (50, 6),
}


class Words:
    def __init__(self, seed):
        self.random = random.Random(seed)
        draw = self.random
        words = set()
        while len(words) < NUM_WORDS:
            syllables = draw.choice((1, 2, 2, 2, 3, 3, 4))
            words.add("".join(draw.choice(CONSONANTS) + draw.choice(VOWELS) + draw.choice(("", "", "n", "r", "s", "t"))
                              for _ in range(syllables)))
        # Short words are the frequent ones, as in texts.
        self.words = sorted(words, key=lambda word: (len(word) + 3 * draw.random(), word))
        self.sums = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(NUM_WORDS)))

    def count(self, mean, spread=0.5):
        """A log-normal number of words with this mean, at least one."""
        return max(1, round(self.random.lognormvariate(math.log(mean) - spread * spread / 2, spread)))

    def text(self, mean, spread=0.5):
        total = self.sums[-1]
        chosen = [self.words[min(bisect.bisect(self.sums, self.random.random() * total), NUM_WORDS - 1)]
                  for _ in range(self.count(mean, spread))]
        return " ".join(chosen)

    def sentences(self, mean):
        left, parts = self.count(mean), []
        while left > 0:
            part = self.text(18).capitalize() + "."
            parts.append(part)
            left -= part.count(" ") + 1
        return " ".join(parts)


def arc(words, question, choice):
    labels = ["A", "B", "C", "D"]
    return {"id": "x", "question": words.text(question).capitalize() + "?",
            "choices": {"text": [words.text(choice) for _ in labels], "label": labels},
            "answerKey": words.random.choice(labels)}


def hellaswag(words):
    long = words.random.random() < 0.68  # how-to articles beside captions of videos
    return {"ind": 0, "activity_label": words.text(3), "ctx_a": words.sentences(60 if long else 18),
            "ctx_b": words.text(4) if not long else "", "ctx": "",
            "endings": [words.sentences(28) if long else words.text(13) + "." for _ in range(4)],
            "source_id": "x", "split": "val", "split_type": "indomain", "label": str(words.random.randrange(4))}


def openbookqa(words):
    row = arc(words, 11, 3)
    row["question_stem"] = row.pop("question")
    return row


def piqa(words):
    return {"goal": words.text(8), "sol1": words.text(20, 0.7), "sol2": words.text(20, 0.7),
            "label": words.random.randrange(2)}


def winogrande(words):
    return {"sentence": f"{words.text(11).capitalize()} _ {words.text(7)}.", "option1": words.text(1),
            "option2": words.text(1), "answer": words.random.choice("12")}


def race(words):
    problems = [{"question": words.text(11).capitalize() + "?", "answer": words.random.choice("ABCD"),
                 "options": [words.text(6) for _ in range(4)]} for _ in range(words.random.choice((2, 3, 3, 4, 4, 4)))]
    return {"article": words.sentences(350), "problems": repr(problems)}


def mmlu(words, subject):
    question, choice = LONG_SUBJECTS.get(subject, (22, 6))
    return {"question": words.text(question).capitalize() + "?", "subject": subject,
            "choices": [words.text(choice) for _ in range(4)], "answer": words.random.randrange(4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    words = Words(arguments.seed)
    makers = {"arc_easy": lambda: arc(words, 20, 4), "arc_challenge": lambda: arc(words, 23, 5),
              "hellaswag": lambda: hellaswag(words), "openbookqa": lambda: openbookqa(words),
              "piqa": lambda: piqa(words), "winogrande": lambda: winogrande(words), "race": lambda: race(words)}
    listing = subprocess.run([arguments.program, "eval", "--list"], capture_output=True, text=True, check=True).stdout
    documents = requests = 0
    for line in listing.splitlines()[1:]:
        # Task, data set with configuration, split, number of documents.
        columns = re.match(r"(\S+) +(.+?) +(\S+) +(\d+) *$", line)
        if not columns or not (columns[1] in SUITE or columns[1].startswith("mmlu_")):
            continue
        task, dataset, split, count = columns.groups()
        name, _, config = dataset.partition(", ")
        folder = os.path.join(arguments.out, "datasets", name, config)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, split + ".jsonl"), "w", encoding="utf-8") as file:
            for _ in range(int(count)):
                row = mmlu(words, config) if task.startswith("mmlu_") else makers[task]()
                file.write(json.dumps(row) + "\n")
                documents += 1
                requests += 2 if task in ("piqa", "winogrande") else 4
    os.makedirs(os.path.join(arguments.out, "text"), exist_ok=True)
    with open(os.path.join(arguments.out, "text", "words.txt"), "w", encoding="utf-8") as file:
        for _ in range(20000):
            file.write(words.sentences(60) + "\n")
    print(f"{documents} documents, {requests} pairs of context and continuation")


if __name__ == "__main__":
    main()
