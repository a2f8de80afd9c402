// One question and its answer: what comes from the stream, and how it is shown.

import { asError } from "./api.js";
import { count, rate, seconds, showText } from "./text.js";

export class Answer {
  #frame = 0;
  #begun = performance.now();
  #first = 0;
  #last = 0;

  constructor(node) {
    this.node = node;
    this.text = "";
    this.reasoning = "";
    this.calls = [];
    this.usage = null;
    this.reason = "";
    for (const part of node.querySelectorAll(".answer .text, .body, .calls, .meta")) part.replaceChildren();
    this.#find(".reasoning").hidden = true;
    this.#find(".fault").hidden = true;
    for (const button of node.querySelectorAll("footer button")) button.hidden = true;
    node.classList.add("busy");
  }

  #find(selector) {
    return this.node.querySelector(`.answer ${selector}`);
  }

  // One event of a stream. An error in it is thrown.
  take(chunk) {
    if (chunk.error) throw asError(chunk.error);
    if (chunk.usage) this.usage = chunk.usage;
    for (const choice of chunk.choices ?? []) {
      const delta = choice.delta ?? { content: choice.text };
      if (delta.content || delta.reasoning_content || delta.tool_calls?.length) this.#note();
      this.text += delta.content ?? "";
      this.reasoning += delta.reasoning_content ?? "";
      for (const call of delta.tool_calls ?? []) this.#takeCall(call);
      this.reason = choice.finish_reason ?? this.reason;
    }
    if (!this.#frame) this.#frame = requestAnimationFrame(() => this.#show());
  }

  #note() {
    this.#last = performance.now();
    this.#first ||= this.#last;
  }

  #takeCall(call) {
    const known = (this.calls[call.index ?? 0] ??= { name: "", text: "" });
    known.name += call.function?.name ?? "";
    known.text += call.function?.arguments ?? "";
  }

  #show() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const reasoning = this.#find(".reasoning");
    reasoning.hidden = !this.reasoning;
    if (this.reasoning) showText(reasoning.querySelector(".text"), this.reasoning);
    showText(this.#find(".body"), this.text);
    this.#showCalls();
    this.#find(".meta").textContent = this.#measured();
    this.node.dispatchEvent(new Event("grown", { bubbles: true }));
  }

  #showCalls() {
    const calls = this.#find(".calls");
    this.calls.forEach((call, index) => {
      const block = (calls.children[index] ?? calls.appendChild(callBlock()));
      block.querySelector("figcaption").textContent = `calls ${call.name}`;
      block.querySelector("pre").textContent = indented(call.text);
    });
  }

  // What there is to know about it so far.
  #measured() {
    const parts = [];
    if (this.#first) parts.push(`first token ${seconds((this.#first - this.#begun) / 1000)}`);
    if (this.usage) {
      const { prompt_tokens: prompt, completion_tokens: drawn, prompt_tokens_details: details } = this.usage;
      const cached = details?.cached_tokens ? ` (${count(details.cached_tokens)} cached)` : "";
      const span = (this.#last - this.#first) / 1000;
      if (drawn > 1 && span > 0) parts.push(`${rate((drawn - 1) / span)} tokens/s`);
      parts.push(`prompt ${count(prompt)}${cached}`, `answer ${count(drawn)}`);
    }
    if (this.reason && this.reason !== "stop") parts.push(this.reason === "length" ? "length limit" : this.reason);
    return parts.join(" · ");
  }

  // It is over: whole, stopped by its reader, or with an error.
  end(error) {
    if (error === "stopped") this.reason = "stopped";
    this.#show();
    this.node.classList.remove("busy");
    this.#find(".again").hidden = false;
    this.#find(".copy").hidden = !this.text || !navigator.clipboard;
    if (error && error !== "stopped") {
      const fault = this.#find(".fault");
      fault.textContent = error.message;
      fault.hidden = false;
      this.#find(".plain").hidden = !/no chat template/i.test(error.message);
    }
  }

  // For who listens instead of looking.
  get spoken() {
    return this.usage ? `Answer complete, ${this.usage.completion_tokens} tokens.` : "Answer ended.";
  }
}

function callBlock() {
  const figure = document.createElement("figure");
  const block = document.createElement("pre");
  block.tabIndex = 0;
  figure.append(document.createElement("figcaption"), block);
  return figure;
}

// Arguments as JSON on several lines, once they are whole.
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
