// Puts the page together: the composer, settings, models, the key, and the state of the server.

import { hasKey, request, useKey } from "./api.js";
import { Chat } from "./chat.js";
import { Live } from "./live.js";

const by = (id) => document.getElementById(id);
const sampling = by("sampling");
const wide = matchMedia("(min-width: 60rem)");
let known = false; // whether the models of this server are listed

// -- what is sent ------------------------------------------------------------------------------------------------------

function chosen() {
  const values = {};
  for (const field of sampling.querySelectorAll(".fields input")) {
    if (field.value !== "") values[field.name] = field.name === "seed" ? whole(field.value) : field.valueAsNumber;
  }
  return {
    mode: sampling.elements.mode.value,
    model: by("model").value,
    system: by("system").value.trim(),
    sampling: values,
  };
}

function whole(text) {
  return Number.parseInt(text, 10);
}

function showChosen() {
  const { mode, system, sampling: values } = chosen();
  const set = Object.keys(values).length + (system && mode === "chat" ? 1 : 0);
  by("changed").textContent = set ? `${set} set` : "";
  by("text-hint").hidden = mode === "chat";
  by("system-field").hidden = mode !== "chat";
}

// -- the conversation --------------------------------------------------------------------------------------------------

const chat = new Chat(by("log"), chosen, (busy, spoken, error) => {
  by("send").hidden = busy;
  by("stop").hidden = !busy;
  by("welcome").hidden = true;
  by("spoken").textContent = spoken;
  if (error?.status === 401) askKey(error);
  live.wake();
});

function send(text) {
  if (!text.trim() || chat.busy) return;
  if (!sampling.checkValidity()) {
    by("settings").open = true;
    sampling.reportValidity();
    return;
  }
  chat.ask(text);
  by("prompt").value = "";
  fit();
}

function fit() {
  const box = by("prompt");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

by("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send(by("prompt").value);
});
by("prompt").addEventListener("input", fit);
by("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send(by("prompt").value);
});
by("stop").addEventListener("click", () => {
  chat.stop();
  by("prompt").focus();
});
by("new").addEventListener("click", () => {
  chat.clear();
  by("welcome").hidden = false;
  by("prompt").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") chat.stop();
});
for (const idea of document.querySelectorAll(".idea")) {
  idea.addEventListener("click", () => send(idea.textContent));
}

sampling.addEventListener("submit", (event) => event.preventDefault());
sampling.addEventListener("input", showChosen);
sampling.addEventListener("reset", () => setTimeout(showChosen));

// -- the server --------------------------------------------------------------------------------------------------------

const live = new Live((error) => {
  if (error) known = known && error.status !== 0; // whoever answers next may serve other models
  else if (!known) listModels();
  if (error?.status === 401) askKey(error);
  else if (!error) by("key-form").hidden = true;
  by("forget").hidden = !hasKey();
  const [state, text] = stateOf(error);
  if (by("state").textContent !== text) by("state").textContent = text;
  by("state").dataset.state = state;
});

function stateOf(error) {
  if (!error) return ["fine", "ready"];
  if (error.status === 401) return ["wait", "key needed"];
  if (error.code === "loading") return ["wait", "loading the model"];
  return ["bad", error.status ? "not well" : "not reachable"];
}

async function listModels() {
  known = true;
  try {
    const { data } = await (await request("v1/models")).json();
    const select = by("model");
    const before = select.value;
    select.replaceChildren(...data.map(option));
    if (data.some((model) => model.id === before)) select.value = before;
  } catch {
    known = false;
  }
}

function option(model) {
  const node = document.createElement("option");
  node.value = model.id;
  node.textContent = model.parent ? `${model.id} (adapter)` : model.id;
  return node;
}

function askKey(error) {
  if (!by("key-form").hidden) return;
  by("key-form").hidden = false;
  by("key-error").hidden = !hasKey();
  by("key-error").textContent = hasKey() ? error.message : "";
  by("key").focus();
}

by("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = by("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(value)) return; // no header can carry it
  by("key").value = "";
  by("key-form").hidden = true;
  useKey(value);
  live.wake();
});
by("forget").addEventListener("click", () => {
  useKey("");
  live.wake();
});

// -- the layout --------------------------------------------------------------------------------------------------------

function unfold() {
  for (const id of ["live", "plugins", "settings"]) by(id).open = wide.matches;
}

wide.addEventListener("change", unfold);
unfold();
showChosen();
if (wide.matches) by("prompt").focus();
live.wake();
