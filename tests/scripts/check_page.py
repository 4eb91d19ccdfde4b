#!/usr/bin/env python3
"""The page of `serve` in a real browser, Chromium without a window, spoken to through its debugging protocol.

    check_page.py --program deltatrain --work DIR [--browser chromium]

Types a prompt, lets it be answered, reads what a token might have been, stops an answer in its middle, provokes an
error, and leaves screenshots of a wide and a narrow window in DIR. Fails on any message in the console, any request to
another address, and any element that makes the page wider than its window. Exit code 77 where no Chromium is found.
"""
import argparse
import base64
import json
import os
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request


class Socket:
    """A WebSocket client for text messages (RFC 6455), as far as the debugging protocol needs one."""

    def __init__(self, url):
        address = urllib.parse.urlparse(url)
        self.socket = socket.create_connection((address.hostname, address.port), timeout=60)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.socket.sendall((f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\n"
                             f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.socket.recv(1)
        assert b" 101 " in answer, answer

    def send(self, text):
        data, mask = text.encode(), secrets.token_bytes(4)
        size = struct.pack("!B", 0x80 | len(data)) if len(data) < 126 else (
            struct.pack("!BH", 0xFE, len(data)) if len(data) < 65536 else struct.pack("!BQ", 0xFF, len(data)))
        self.socket.sendall(b"\x81" + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise SystemExit("check_page: the browser has closed the connection")
            data += more
        return data

    def receive(self):
        text = b""
        while True:
            first, second = self.exactly(2)
            size = second & 0x7F
            if size == 126:
                size = struct.unpack("!H", self.exactly(2))[0]
            elif size == 127:
                size = struct.unpack("!Q", self.exactly(8))[0]
            text += self.exactly(size)
            if first & 0x80:
                return text.decode()


class Page:
    def __init__(self, url):
        self.socket = Socket(url)
        self.count = 0
        self.messages, self.requests = [], []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.count:
                assert "error" not in message, (method, message)
                return message["result"]
            self.note(message)

    def note(self, message):
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(str([a.get("value") for a in parameters["args"]]))
        if message.get("method") == "Runtime.exceptionThrown":
            self.messages.append(str(parameters["exceptionDetails"].get("exception", {}).get("description")))
        if message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.messages.append(parameters["entry"]["text"])
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (script, result)
        return result["result"].get("value")

    def wait(self, script, what):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.05)
        raise SystemExit(f"check_page: waited in vain for {what}: {self.run('document.body.innerText')}")

    def size(self, width, height, mobile):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


CENTER = "(r => [r.x + r.width / 2, r.y + r.height / 2])(%s.getClientRects()[0])"


def use(page, address, work):
    def check(holds, what):
        if not holds:
            raise SystemExit(f"check_page: {what}: {page.run('document.body.innerText')!r}")

    def press(element):
        page.click(*page.run(CENTER % f"document.querySelector('{element}')"))

    for name, width, height, mobile in (("desktop", 1280, 800, False), ("phone", 390, 844, True)):
        page.size(width, height, mobile)
        page.call("Page.navigate", url=address)
        page.wait("document.readyState === 'complete' && document.querySelector('#model').textContent", "the model's name")
        # What a user types.
        page.run("document.querySelector('#prompt').focus(); document.querySelector('#prompt').select()")
        page.call("Input.insertText", text="The miller counts <b>caf\u00e9</b>\n")
        page.run("document.querySelector('#max_tokens').value = '60'; document.querySelector('#seed').value = '7'")
        press("#go")
        page.wait("!document.querySelector('#go').disabled && /tokens.s/.test(document.querySelector('#stats').textContent)",
                  "an answer")
        stats = page.run("document.querySelector('#stats').textContent")
        check(stats.startswith("60 tokens") or "end of text" in stats, f"tokens were counted, not {stats}")
        shown = page.run("document.querySelector('#output').textContent")
        body = {"prompt": "The miller counts <b>caf\u00e9</b>\n", "max_tokens": 60, "seed": 7, "temperature": 0.8}
        request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode())
        answer = json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"]
        check(shown == body["prompt"] + answer, f"{name}: the text is prompt and answer, as text")
        count = page.run("document.querySelectorAll('#output .token').length")
        check(count > 5, f"{name}: tokens are marked")
        # Alternatives of a token under the mouse.
        page.run("document.querySelectorAll('#output .token')[3].scrollIntoView({block: 'center'})")
        time.sleep(0.1)
        page.move(*page.run(CENTER % "document.querySelectorAll('#output .token')[3]"))
        page.wait("!document.querySelector('#detail').hidden", "the alternatives")
        rows = page.run("[...document.querySelectorAll('#detail tr')].map(r => r.innerText)")
        check(len(rows) >= 5 and all("%" in row for row in rows), f"{name}: alternatives with probabilities, not {rows}")
        check(page.run("document.querySelectorAll('#detail tr.own').length") >= 1, f"{name}: its own row is marked")
        box = page.run("(r => [r.left, r.top, r.right, r.bottom])(document.querySelector('#detail').getBoundingClientRect())")
        check(box[0] >= 0 and box[2] <= width and box[1] >= 0 and box[3] <= height, f"{name}: inside of the window, not {box}")
        check(page.run("document.documentElement.scrollWidth <= innerWidth"), f"{name}: no wider than the window")
        page.screenshot(os.path.join(work, f"page-{name}.png"))
        page.move(1, 1)
        page.run("scrollTo(0, 0)")
        page.screenshot(os.path.join(work, f"page-{name}-top.png"))

        # An answer stopped in its middle: as soon as its fourth token is there.
        page.run("document.querySelector('#max_tokens').value = '4000'")
        page.run("new MutationObserver((_, self) => { if (document.querySelectorAll('#output .token').length > 3) {"
                 " self.disconnect(); document.querySelector('#stop').click(); } })"
                 ".observe(document.querySelector('#output'), {childList: true})")
        press("#go")
        page.wait("/stopped/.test(document.querySelector('#stats').textContent) && !document.querySelector('#go').disabled",
                  "the stop")

        # What the server refuses is said.
        page.run("document.querySelector('#max_tokens').value = '100000000'")
        press("#go")
        page.wait("!document.querySelector('#error').hidden", "an error")
        check("at most" in page.run("document.querySelector('#error').textContent"), f"{name}: the server's message")
    # The refusals show in the console, as the browser itself writes them there.
    messages = [m for m in page.messages if "400 (Bad Request)" not in m]
    check(not messages, f"no messages in the console, got {messages}")
    strange = [url for url in page.requests if not url.startswith((address + "/", "data:"))]
    check(not strange, f"no requests elsewhere, got {strange}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--browser")
    args = parser.parse_args()
    names = [args.browser] if args.browser else ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
    browser = next((found for found in map(shutil.which, names) if found), None)
    if browser is None:
        print("check_page: SKIPPED, no Chromium is here (Debian: chromium-headless-shell)")
        sys.exit(77)
    work = os.path.abspath(args.work)
    os.makedirs(work, exist_ok=True)
    program = os.path.abspath(args.program)
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.write("The miller counts the boats and the miller's daughter mends the nets.\n" * 200)
        for command in (["tokenizer", "train", "--input", text, "--vocab-size", "300", "--out", folder + "/tokenizer"],
                        ["init", "--recipe", "recipes/smoke/gdn.yaml", "--set", "model.vocab_size=320",
                         "--set", "model.max_position_embeddings=4096", "--out", folder + "/model"]):
            subprocess.run([program, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server = subprocess.Popen([program, "serve", "--model", folder + "/model", "--tokenizer", folder + "/tokenizer",
                                   "--name", "smoke", "--port", "0"], stdout=subprocess.PIPE, text=True)
        shell = None
        try:
            address = server.stdout.readline().strip()
            shell = subprocess.Popen(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 f"--user-data-dir={folder}/profile", "--remote-debugging-port=0", "about:blank"],
                stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            for line in shell.stderr:
                if "DevTools listening on" in line:
                    port = urllib.parse.urlparse(line.split()[-1]).port
                    break
            else:
                raise SystemExit("check_page: the browser does not start")
            pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=60))
            target = next(p for p in pages if p["type"] == "page")
            use(Page(target["webSocketDebuggerUrl"]), address, work)
        finally:
            for process in (shell, server):
                if process is not None:
                    process.terminate()
                    process.wait(timeout=60)
    print("check_page: the page works at both widths; screenshots in " + work)


main()
