// The conversation: turns, the one answer that may be running, and what is sent for it.

import { Answer } from "./answer.js";
import { request } from "./api.js";
import { events } from "./sse.js";

export class Chat {
  #turns = [];
  #running = null; // the AbortController of the answer that comes

  // `log`: where turns go. `options()`: {mode, model, system, sampling}, read for each answer. `changed(busy, spoken)`.
  constructor(log, options, changed) {
    this.log = log;
    this.options = options;
    this.changed = changed;
    this.follow = true;
    log.addEventListener("scroll", () => {
      this.follow = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
    });
    log.addEventListener("grown", () => this.#scroll());
  }

  get busy() {
    return this.#running !== null;
  }

  ask(question) {
    const node = document.getElementById("turn").content.cloneNode(true).firstElementChild;
    node.querySelector(".question .text").textContent = question;
    const turn = { question, node, answer: null, mode: "chat" };
    node.querySelector(".again").addEventListener("click", () => this.#run(turn));
    node.querySelector(".plain").addEventListener("click", () => this.#run(turn, "text"));
    node.querySelector(".copy").addEventListener("click", () => navigator.clipboard.writeText(turn.answer.text));
    this.#turns.push(turn);
    this.log.append(node);
    this.follow = true;
    return this.#run(turn);
  }

  stop() {
    this.#running?.abort();
  }

  clear() {
    this.stop();
    for (const turn of this.#turns) turn.node.remove();
    this.#turns = [];
  }

  // The answer to a turn, also once more: what came after it goes.
  async #run(turn, mode) {
    this.stop();
    const control = (this.#running = new AbortController());
    const index = this.#turns.indexOf(turn);
    for (const later of this.#turns.splice(index + 1)) later.node.remove();
    const options = this.options();
    turn.mode = mode ?? options.mode;
    const answer = (turn.answer = new Answer(turn.node));
    this.log.setAttribute("aria-busy", "true");
    this.changed(true, "");
    this.#scroll();
    const error = await this.#stream(this.#body(turn, options), turn.mode, answer, control.signal);
    answer.end(error);
    if (this.#running !== control) return; // another one runs already
    this.#running = null;
    this.log.removeAttribute("aria-busy");
    this.changed(false, error instanceof Error ? "" : answer.spoken, error);
  }

  // Reads the answer to its end. Returns nothing, "stopped", or the error.
  async #stream(body, mode, answer, signal) {
    let whole = false;
    try {
      const response = await request(mode === "chat" ? "v1/chat/completions" : "v1/completions", { body, signal });
      for await (const data of events(response)) {
        whole ||= data === "[DONE]";
        if (!whole) answer.take(JSON.parse(data));
      }
      return whole ? undefined : new Error("The answer was cut off: the connection ended before it did.");
    } catch (error) {
      if (signal.aborted) return "stopped";
      return error instanceof TypeError ? new Error("The connection was lost before the answer ended.") : error;
    }
  }

  #body(turn, { model, system, sampling }) {
    const body = { ...sampling, stream: true, stream_options: { include_usage: true } };
    if (model) body.model = model;
    if (turn.mode === "text") return { ...body, prompt: turn.question };
    const messages = system ? [{ role: "system", content: system }] : [];
    for (const before of this.#turns) {
      if (before === turn) break;
      if (before.mode === "text" || !before.answer.text) continue; // nothing was said
      messages.push({ role: "user", content: before.question }, { role: "assistant", content: before.answer.text });
    }
    return { ...body, messages: [...messages, { role: "user", content: turn.question }] };
  }

  #scroll() {
    if (this.follow) this.log.scrollTop = this.log.scrollHeight;
  }
}
