#include "serve/page.h"

namespace deltatrain::serve {

std::string_view page() {
  static constexpr std::string_view kPage = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>deltatrain</title>
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; --back: #fff; --text: #1c1e21; --soft: #5c6470; --line: #c9ced6;
  --panel: #f4f5f7; --accent: #0b5cad; --on-accent: #fff; --bad: #a3200d; --hue: 210; --light: 80%; }
@media (prefers-color-scheme: dark) { :root { --back: #15171a; --text: #e6e8eb; --soft: #a0a8b3;
  --line: #3b424c; --panel: #1e2126; --accent: #6cb2f5; --on-accent: #10233a; --bad: #ff9a86;
  --light: 26%; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.25rem; margin: 0 0 .75rem; overflow-wrap: anywhere; }
h1 small { color: var(--soft); font-weight: normal; font-size: 1rem; }
label { display: block; color: var(--soft); font-size: .875rem; }
textarea, input { width: 100%; font: inherit; color: inherit; background: var(--back);
  border: 1px solid var(--line); border-radius: .375rem; padding: .5rem; }
textarea { min-height: 7rem; resize: vertical; }
.settings { display: grid; grid-template-columns: repeat(auto-fit, minmax(7rem, 1fr)); gap: .75rem;
  margin: .75rem 0; }
.actions { display: flex; flex-wrap: wrap; gap: .75rem; align-items: center; }
button { font: inherit; padding: .5rem 1.25rem; border-radius: .375rem; cursor: pointer;
  border: 1px solid var(--accent); background: var(--accent); color: var(--on-accent); }
button.second { background: transparent; color: var(--accent); }
button:disabled { opacity: .5; cursor: default; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 1px; }
#stats { color: var(--soft); font-variant-numeric: tabular-nums; }
#error { color: var(--bad); margin: .75rem 0 0; overflow-wrap: anywhere; }
#output { margin-top: 1rem; padding: .75rem; min-height: 7rem; border-radius: .375rem;
  background: var(--panel); white-space: pre-wrap; overflow-wrap: anywhere; }
#output .prompt { color: var(--soft); }
#output .token { border-radius: .2rem; cursor: help;
  background: hsl(var(--hue) 80% var(--light) / var(--doubt)); }
#output .token.chosen { outline: 2px solid var(--accent); }
#detail { position: fixed; z-index: 1; max-width: min(20rem, calc(100vw - 1rem)); padding: .5rem .75rem;
  background: var(--back); border: 1px solid var(--line); border-radius: .375rem;
  box-shadow: 0 .25rem 1rem #0004; font-size: .875rem; pointer-events: none; }
#detail table { border-collapse: collapse; width: 100%; }
#detail td { padding: .1rem 0; vertical-align: top; }
#detail td:first-child { font-family: ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
#detail td:last-child { text-align: right; padding-left: 1rem; font-variant-numeric: tabular-nums; }
#detail tr.own td { font-weight: bold; }
#detail hr { border: 0; border-top: 1px solid var(--line); }
[hidden] { display: none; }
</style>
</head>
<body>
<main>
<h1>deltatrain <small id="model"></small></h1>
<form id="form">
<label for="prompt">Prompt</label>
<textarea id="prompt" spellcheck="false" autofocus>The</textarea>
<div class="settings">
<div><label for="max_tokens">Tokens</label><input id="max_tokens" type="number" min="1" value="100" required></div>
<div><label for="temperature">Temperature</label><input id="temperature" type="number" min="0" max="100" step="any" value="0.8" required></div>
<div><label for="top_p">Top p</label><input id="top_p" type="number" min="0" max="1" step="any" value="1" required></div>
<div><label for="top_k">Top k</label><input id="top_k" type="number" min="0" value="0" required></div>
<div><label for="seed">Seed</label><input id="seed" type="number" min="0" placeholder="random"></div>
<div><label for="key">API key</label><input id="key" type="password" autocomplete="off" placeholder="none"></div>
</div>
<div class="actions">
<button id="go" type="submit">Generate</button>
<button id="stop" type="button" class="second" disabled>Stop</button>
<span id="stats" role="status"></span>
</div>
</form>
<p id="error" role="alert" hidden></p>
<div id="output" aria-label="Answer" tabindex="-1"></div>
<div id="detail" role="tooltip" hidden></div>
</main>
<script>
"use strict";
const by = id => document.getElementById(id);
const output = by("output"), detail = by("detail");
let stop = null;  // ends the answer under way

function headers() {
  const result = {"Content-Type": "application/json"};
  if (by("key").value) result.Authorization = "Bearer " + by("key").value;
  return result;
}

function showError(message) {
  by("error").textContent = message;
  by("error").hidden = !message;
}

async function showModel() {
  try {
    const response = await fetch("v1/models", {headers: headers()});
    if (response.ok) by("model").textContent = (await response.json()).data[0].id;
  } catch { /* the first request will tell */ }
}

// A token in a table: blanks, line ends and what else has no shape made visible.
const visible = text => text.replace(/ /g, "\u2423").replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5")
  .replace(/[\u0000-\u001f\u007f-\u00a0\u00ad]/g, c => "\\x" + c.charCodeAt(0).toString(16).padStart(2, "0"));
const percent = logprob => {
  const value = 100 * Math.exp(logprob);
  return (value >= 0.1 ? value.toFixed(1) : value.toPrecision(1)) + " %";
};

function addPiece(text, entries) {
  const span = document.createElement("span");
  span.className = "token";
  span.textContent = text;
  span.tabIndex = 0;
  const sum = entries.reduce((total, entry) => total + entry.own, 0);
  span.style.setProperty("--doubt", (1 - Math.exp(sum)).toFixed(3));
  span.entries = entries;
  output.append(span);
}

function showDetail(span) {
  for (const other of output.querySelectorAll(".chosen")) other.classList.remove("chosen");
  if (!span) { detail.hidden = true; return; }
  span.classList.add("chosen");
  detail.replaceChildren();
  span.entries.forEach((entry, i) => {
    if (i > 0) detail.append(document.createElement("hr"));
    const table = detail.appendChild(document.createElement("table"));
    for (const [text, logprob] of entry.top) {
      const row = table.insertRow();
      if (text === entry.text) row.className = "own";
      row.insertCell().textContent = visible(text);
      row.insertCell().textContent = percent(logprob);
    }
  });
  detail.hidden = false;
  const place = span.getClientRects()[0] || span.getBoundingClientRect();
  const box = detail.getBoundingClientRect();
  const left = Math.min(place.left, document.documentElement.clientWidth - box.width - 8);
  const above = place.top - box.height - 4;
  const below = place.bottom + 4;
  detail.style.left = Math.max(8, left) + "px";
  detail.style.top = (below + box.height > innerHeight && above > 0 ? above : below) + "px";
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2))
      if (text.startsWith("data: ")) yield text.slice(6, end);
  }
}

async function generate() {
  const prompt = by("prompt").value;
  const body = {prompt, stream: true, logprobs: 5, max_tokens: Number(by("max_tokens").value),
    temperature: Number(by("temperature").value), top_p: Number(by("top_p").value),
    top_k: Number(by("top_k").value)};
  if (by("seed").value) body.seed = Number(by("seed").value);
  showError("");
  showDetail(null);
  output.replaceChildren();
  const before = output.appendChild(document.createElement("span"));
  before.className = "prompt";
  before.textContent = prompt;
  by("stats").textContent = "waiting";
  const controller = new AbortController();
  stop = controller.abort.bind(controller);
  by("go").disabled = true;
  by("stop").disabled = false;
  const start = performance.now();
  let first = 0, count = 0, reason = "", waiting = [];
  const stats = () => {
    const seconds = (performance.now() - first) / 1000;
    const rate = count > 1 && seconds > 0 ? ((count - 1) / seconds).toFixed(1) + " tokens/s, " : "";
    by("stats").textContent = `${count} tokens, ${rate}first after ${((first - start) / 1000).toFixed(2)} s`
      + (reason ? ` (${reason})` : "");
  };
  try {
    const response = await fetch("v1/completions", {method: "POST", headers: headers(),
      body: JSON.stringify(body), signal: controller.signal});
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event === "[DONE]") break;
      const data = JSON.parse(event);
      if (data.error) throw new Error(data.error.message);
      const choice = data.choices[0], log = choice.logprobs;
      log.tokens.forEach((text, i) => waiting.push({text, own: log.token_logprobs[i],
        top: Object.entries(log.top_logprobs[i]).sort((a, b) => b[1] - a[1])}));
      if (log.tokens.length > 0 && first === 0) first = performance.now();
      count += log.tokens.length;
      // Several tokens may make one character, and text may come after its last token.
      if (choice.text) { addPiece(choice.text, waiting); waiting = []; }
      if (choice.finish_reason) reason = choice.finish_reason === "stop" ? "end of text" : "length";
      stats();
    }
  } catch (error) {
    if (error.name === "AbortError") {
      reason = "stopped";
      if (first > 0) stats(); else by("stats").textContent = "stopped";
    } else {
      by("stats").textContent = "";
      showError(error.message);
    }
  } finally {
    stop = null;
    by("go").disabled = false;
    by("stop").disabled = true;
  }
}

by("form").addEventListener("submit", event => { event.preventDefault(); if (!stop) generate(); });
by("prompt").addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) by("form").requestSubmit();
});
by("stop").addEventListener("click", () => stop && stop());
by("key").addEventListener("change", showModel);
const token = event => event.target.closest && event.target.closest(".token");
output.addEventListener("mouseover", event => showDetail(token(event)));
output.addEventListener("mouseleave", () => showDetail(null));
output.addEventListener("focusin", event => showDetail(token(event)));
output.addEventListener("focusout", () => showDetail(null));
addEventListener("scroll", () => showDetail(null));
showModel();
</script>
</body>
</html>
)html";
  return kPage;
}

}  // namespace deltatrain::serve
