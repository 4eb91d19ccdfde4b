#!/usr/bin/env python3
"""How fast `serve` is: tokens a second by number of streams, and times to the first token.

    measure_server.py --program deltatrain --model DIR --tokenizer DIR [--device cuda] [--streams 1,16,256] [--tokens 1200]
                      [--seconds 2] [--serve-options "..."]

Starts the server and prints a line a measurement, in Markdown. Rates are counted by the server itself (/metrics) between two
moments at which all streams are decoding; clients ask with ids of random tokens and ignore ends of text. First tokens are
timed by a client that reads its answer as a stream.
"""
import argparse
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time


def gpu_mib():
    used = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
    return sum(int(line) for line in used.stdout.split())


def post(port, body, timeout=600):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def counters(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    result = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}
    return time.monotonic(), result


def idle(port):
    while True:
        now = counters(port)[1]
        if now["deltatrain_streams"] + now["deltatrain_running_prompts"] + now["deltatrain_waiting_prompts"] == 0:
            return
        time.sleep(0.02)


def prompt(rng, vocabulary, length):
    return [rng.randrange(vocabulary) for _ in range(length)]


def rate(port, rng, options, vocabulary, streams, settings, seconds):
    """Tokens a second with so many streams, and steps a second."""
    def one(body):
        try:
            connection, answer = post(port, body)
            while answer.read(1 << 16):
                pass
            connection.close()
        except OSError:
            pass

    # 16 requests with several samples where there are many streams, so that prompts are read soon.
    n = max(1, streams // 16)
    threads = []
    for _ in range(streams // n):
        body = {"prompt": prompt(rng, vocabulary, 16), "max_tokens": options.tokens, "ignore_eos": True, "n": n, **settings}
        threads.append(threading.Thread(target=one, args=(body,)))
    for thread in threads:
        thread.start()
    for _ in range(2000):
        begin = counters(port)
        if begin[1]["deltatrain_streams"] == streams:
            break
        time.sleep(0.005)
    else:
        sys.exit(f"measure_server: {streams} streams never ran at once: {begin[1]['deltatrain_streams']}")
    end = begin
    while end[0] - begin[0] < seconds:
        time.sleep(0.1)
        now = counters(port)
        if now[1]["deltatrain_streams"] < streams:
            break
        end = now
    for thread in threads:
        thread.join()
    idle(port)
    passed = end[0] - begin[0]
    if passed < 0.1:
        return None

    def per_second(name):
        return (end[1][f"deltatrain_{name}_total"] - begin[1][f"deltatrain_{name}_total"]) / passed
    return per_second("generated_tokens"), per_second("decoding_steps")


def first_token(port, body):
    start = time.monotonic()
    connection, answer = post(port, {**body, "stream": True})
    answer.read(1)
    seconds = time.monotonic() - start
    answer.read()
    connection.close()
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--streams", default="1,16,256")
    parser.add_argument("--tokens", type=int, default=1200)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--serve-options", default="")
    options = parser.parse_args()
    with open(os.path.join(options.model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    vocabulary = config["vocab_size"]
    started = time.monotonic()
    server = subprocess.Popen([options.program, "serve", "--model", options.model, "--tokenizer", options.tokenizer, "--port", "0",
                               "--device", options.device] + options.serve_options.split(), stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline().strip().rsplit(":", 1)[1])
        print(f"ready after {time.monotonic() - started:.2f} s; vocabulary {vocabulary}", flush=True)
        rng = random.Random(1)
        kinds = [("greedy", {"temperature": 0}), ("temperature 1", {"temperature": 1, "seed": 1}),
                 ("top_p 0.9", {"temperature": 0.8, "top_p": 0.9, "seed": 1}),
                 ("5 log-probabilities", {"temperature": 0, "logprobs": 5}),
                 ("greedy, as a stream", {"temperature": 0, "stream": True})]
        if options.device == "cuda":
            print(f"GPU memory before the first request: {gpu_mib()} MiB", flush=True)
        print("| streams | asked for | tokens/s | ms a step |\n|---|---|---|---|")
        for streams in [int(count) for count in options.streams.split(",")]:
            # Once to warm up: recordings of steps, choices of products.
            rate(port, rng, options, vocabulary, streams, {"temperature": 0, "max_tokens": 200}, 0.3)
            for name, settings in kinds:
                got = rate(port, rng, options, vocabulary, streams, settings, options.seconds)
                text = "too short to measure" if got is None else f"{got[0]:.0f} | {streams / got[0] * 1000:.3f}"
                print(f"| {streams} | {name} | {text} |", flush=True)
        print("| prompt | first token, ms: median of 10 | largest |\n|---|---|---|")
        for length in (8, 128, 512, 2000):
            if length + 8 > config["max_position_embeddings"]:
                continue
            times = [first_token(port, {"prompt": prompt(rng, vocabulary, length), "max_tokens": 4, "temperature": 0,
                                        "ignore_eos": True}) * 1000 for _ in range(11)][1:]
            print(f"| {length} | {statistics.median(times):.2f} | {max(times):.2f} |", flush=True)
        # Prompts read, with every token scored.
        for name, settings in (("prompts alone", {"max_tokens": 1}), ("prompts scored", {"max_tokens": 1, "echo": True, "logprobs": 1})):
            length = min(1000, config["max_position_embeddings"] - 8)
            bodies = [{"prompt": [prompt(rng, vocabulary, length) for _ in range(8)], "temperature": 0, **settings} for _ in range(8)]
            begin = time.monotonic()
            threads = [threading.Thread(target=lambda body=body: post(port, body)[1].read()) for body in bodies]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if options.device == "cuda":
                print(f"GPU memory: {gpu_mib()} MiB")
            print(f"{name}: 64 of {length} tokens: {64 * length / (time.monotonic() - begin):.0f} tokens/s", flush=True)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


main()
