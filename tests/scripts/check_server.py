#!/usr/bin/env python3
"""Many clients at once against `serve`, of whom some leave, some send nonsense and some read slowly.

    check_server.py --program deltatrain --work DIR [--device cuda] [--requests 10000] [--clients 64]
                    [--model DIR --tokenizer DIR] [--serve-options "--streams 24 ..."]

Every answer that is given has to be the one that its request gets alone, before and afterwards; the server's memory, and
the GPU's, must not grow after the first third; streams, prompts and queue are empty at the end; SIGTERM ends it with
143. Without --model a small untrained one is made. Ends with one line of counts, and exit code 0 where all holds.
"""
import argparse
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time


def fail(text):
    sys.exit(f"check_server: {text}")


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def make_model(program, work):
    rng = random.Random(5)
    words = ["".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou\u00e9") for _ in range(rng.randrange(1, 4))) for _ in range(300)]
    text = os.path.join(work, "text.txt")
    with open(text, "w", encoding="utf-8") as file:
        for _ in range(3000):
            file.write(" ".join(rng.choice(words) for _ in range(12)) + "\n")
    tokenizer, model = os.path.join(work, "tokenizer"), os.path.join(work, "model")
    run([program, "tokenizer", "train", "--input", text, "--vocab-size", "400", "--out", tokenizer])
    # Large weights: an untrained model's answers would be too much alike.
    run([program, "init", "--recipe", "recipes/smoke/gdn.yaml", "--set", "model.vocab_size=448", "--set",
         "model.initializer_range=0.2", "--set", "model.max_position_embeddings=512", "--out", model])
    return model, tokenizer


def request_bodies(vocabulary):
    """Requests of many kinds, all with a seed, so that each has one right answer."""
    rng = random.Random(17)

    def ids(count):
        return [rng.randrange(vocabulary) for _ in range(count)]

    shared, bodies = ids(200), []
    for i in range(60):
        prompt = ids(130 + i if i % 6 == 0 else 1 + i * 7 % 70)
        if i % 4 == 0:
            prompt[:150] = shared[:min(150, len(prompt))]
        body = {"prompt": prompt, "seed": i, "max_tokens": 1 + i % 12}
        if i % 5 == 0:
            body["prompt"] = [prompt, ids(5), shared]
        if i % 3 == 0:
            body["temperature"] = 0
        if i % 3 == 1:
            body["top_p"] = 0.9
        if i % 7 == 2:
            body["top_k"] = 5
        if i % 4 == 1:
            body["n"] = 1 + i % 3
        if i % 2 == 0:
            body["logprobs"] = i % 6
        if i % 8 == 0:
            body["echo"] = True
        if i % 7 == 0:
            body["stop"] = ["e", "\n"]
        if i % 11 == 0:
            body["prompt"] = "bala mine"
        bodies.append(body)
    return bodies


class Client:
    """One connection that is kept."""

    def __init__(self, port):
        self.port, self.connection = port, None

    def post(self, body):
        for attempt in (0, 1):
            if self.connection is None:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
            try:
                self.connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                answer = self.connection.getresponse()
                return answer.status, answer.read()
            except (http.client.HTTPException, OSError):
                self.connection.close()
                self.connection = None
                if attempt:
                    raise

    def close(self):
        if self.connection:
            self.connection.close()


def essence(answer):
    """All of an answer but its name and time."""
    return {"choices": answer["choices"], "usage": answer["usage"]}


def framed(body):
    return f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Crowd:
    def __init__(self, port, bodies, answers, vocabulary, longest):
        self.port, self.bodies, self.answers, self.vocabulary, self.longest = port, bodies, answers, vocabulary, longest
        self.counts = {name: 0 for name in ("right", "wrong", "refused", "left", "slow", "streamed")}
        self.lock, self.left, self.problems = threading.Lock(), 0, []

    def run(self, requests, clients):
        self.left = requests
        threads = [threading.Thread(target=self.client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def count(self, name, problem=None):
        with self.lock:
            self.counts[name] += 1
            if problem and len(self.problems) < 10:
                self.problems.append(problem)

    def check(self, at, status, body, name="right"):
        try:
            right = status == 200 and essence(json.loads(body)) == self.answers[at]
        except (ValueError, KeyError, TypeError):
            right = False
        self.count(name if right else "wrong", None if right else f"request {at}: {status} {body[:300]!r}")

    def client(self, number):
        rng, client = random.Random(number), Client(self.port)
        while True:
            with self.lock:
                self.left -= 1
                if self.left < 0:
                    break
            at = rng.randrange(len(self.bodies))
            try:
                self.one(rng, client, at, json.dumps(self.bodies[at]).encode())
            except Exception as error:  # an answer that does not come is a wrong one
                self.count("wrong", f"request {at}: {type(error).__name__}: {error}")
        client.close()

    def one(self, rng, client, at, body):
        kind = rng.randrange(12)
        if kind in (0, 1):  # leaves while it is owed an answer, or in the middle of its request
            gone = socket.create_connection(("127.0.0.1", self.port), timeout=300)
            gone.sendall(framed(body) if kind == 0 else framed(body)[:40 + rng.randrange(60)])
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.02)
            gone.close()
            self.count("left")
        elif kind == 2:  # no request
            status, answer = client.post(body[:len(body) - 1 - rng.randrange(len(body) // 2)])
            self.count("refused" if status == 400 and b'"error"' in answer else "wrong", f"malformed: {status}")
        elif kind == 3:  # too long
            status, _ = client.post(json.dumps({**self.bodies[at], "prompt": [1] * (self.longest + 1)}).encode())
            self.count("refused" if status == 400 else "wrong", f"too long: {status}")
        elif kind == 4:  # reads slowly, on a connection of its own
            with socket.create_connection(("127.0.0.1", self.port), timeout=300) as slow:
                slow.sendall(framed(body))
                data = b""
                for _ in range(5):
                    data += slow.recv(16)
                    time.sleep(0.001)
                while b"\r\n\r\n" not in data:
                    data += slow.recv(64)
                head, rest = data.split(b"\r\n\r\n", 1)
                length = int([line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")][0].split(b":")[1])
                while len(rest) < length:
                    rest += slow.recv(999)
                self.check(at, int(head.split()[1]), rest, "slow")
        elif kind == 5:  # as a stream: whole, and its pieces are those of the answer
            status, answer = client.post(json.dumps({**self.bodies[at], "stream": True}).encode())
            events = [line[6:] for line in answer.decode().split("\n") if line.startswith("data: ")]
            texts = [""] * len(self.answers[at]["choices"])
            for event in events[:-1]:
                choice = json.loads(event)["choices"][0]
                texts[choice["index"]] += choice["text"]
            right = status == 200 and events[-1] == "[DONE]" and texts == [c["text"] for c in self.answers[at]["choices"]]
            self.count("streamed" if right else "wrong", None if right else f"stream {at}: {status}")
        else:
            self.check(at, *client.post(body))


def metrics(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}


def wait_until_idle(port):
    for _ in range(3000):
        now = metrics(port)
        if all(now[f"deltatrain_{name}"] == 0 for name in ("waiting_prompts", "running_prompts", "streams")):
            return now
        time.sleep(0.02)
    fail("the server is not idle after a minute")


def memory_of(process, device):
    """Resident bytes of the process, and bytes in use on the GPU."""
    with open(f"/proc/{process.pid}/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if device != "cuda":
        return resident, 0
    used = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
    return resident, sum(int(line) for line in used.stdout.split()) << 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--model")
    parser.add_argument("--tokenizer")
    parser.add_argument("--serve-options", default="")
    options = parser.parse_args()
    program, work = os.path.abspath(options.program), os.path.abspath(options.work)
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    model, tokenizer = (options.model, options.tokenizer) if options.model else make_model(program, work)
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    vocabulary, longest = min(config["vocab_size"], 400), config["max_position_embeddings"] + 2
    log = open(os.path.join(work, "serve.log"), "w", encoding="utf-8")
    command = [program, "serve", "--model", model, "--port", "0", "--device", options.device] + options.serve_options.split()
    server = subprocess.Popen(command + (["--tokenizer", tokenizer] if tokenizer else []), stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        address = server.stdout.readline().strip()
        if not address:
            fail(f"the server did not start: {open(log.name, encoding='utf-8').read()[-2000:]}")
        port = int(address.rsplit(":", 1)[1])
        bodies, alone = request_bodies(vocabulary), Client(port)
        answers = []
        for at, body in enumerate(bodies):
            status, answer = alone.post(json.dumps(body).encode())
            if status != 200:
                fail(f"request {at} alone: {status} {answer[:500]!r}")
            answers.append(essence(json.loads(answer)))
        alone.close()
        crowd = Crowd(port, bodies, answers, vocabulary, longest)
        start = time.monotonic()
        crowd.run(options.requests // 3, options.clients)  # until then memory grows to what it needs
        wait_until_idle(port)
        before = memory_of(server, options.device)
        crowd.run(options.requests - options.requests // 3, options.clients)
        now = wait_until_idle(port)
        seconds = time.monotonic() - start
        after = memory_of(server, options.device)
        again = Client(port)
        for at in range(0, len(bodies), 7):
            crowd.check(at, *again.post(json.dumps(bodies[at]).encode()))
        again.close()
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(timeout=120)
    grown, grown_gpu = after[0] - before[0], after[1] - before[1]
    counts = crowd.counts
    print(f"check_server: {options.requests} requests of {options.clients} clients in {seconds:.1f} s: "
          + ", ".join(f"{value} {name}" for name, value in counts.items())
          + f"; {int(now['deltatrain_generated_tokens_total'])} tokens generated, "
          f"{int(now['deltatrain_reused_prompt_tokens_total'])} of the prompts reused; resident {before[0] >> 20} MiB, grown "
          f"{grown / 1e6:.1f} MB; GPU {before[1] >> 20} MiB, grown {grown_gpu >> 20} MiB")
    problems = crowd.problems[:] if counts["wrong"] else []
    if code != 128 + signal.SIGTERM:
        problems.append(f"exit code {code} after SIGTERM")
    # A leak of a request's answer alone would be more.
    if grown > options.requests * 2000 + (8 << 20) or grown_gpu > 0:
        problems.append("memory has grown")
    for name, share in (("right", 3), ("refused", 20), ("left", 20), ("slow", 40), ("streamed", 40)):
        if counts[name] < options.requests // share:
            problems.append(f"{counts[name]} {name}: too few to have been tried")
    for problem in problems:
        print(f"check_server: {problem}")
    sys.exit(1 if problems else 0)


main()
