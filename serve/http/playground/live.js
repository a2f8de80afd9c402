// The live view: asks for the engine's snapshot once a second while the page is seen, and shows it.

import { request } from "./api.js";
import { count, rate, share } from "./text.js";

const PERIOD = 1000;
const SLOWEST = 8000;
const POINTS = 60;
const SHORTEST = 0.5; // seconds that a rate is taken over, at least

const by = (id) => document.getElementById(id);

export class Live {
  #timer = 0;
  #asking = false;
  #wait = PERIOD;
  #before = null;
  #mark = null; // the snapshot that the next rates begin at
  #series = { decode: [], prefill: [] };

  // `heard(error)`: after each try, with nothing where it went well.
  constructor(heard) {
    this.heard = heard;
    document.addEventListener("visibilitychange", () => this.wake());
  }

  // Ask now, and from now on.
  wake() {
    clearTimeout(this.#timer);
    this.#wait = PERIOD;
    if (!document.hidden && !this.#asking) this.#ask();
  }

  async #ask() {
    this.#asking = true;
    let error;
    try {
      const response = await request("v1/tokloom/snapshot", { signal: AbortSignal.timeout(10 * PERIOD) });
      this.#take(await response.json());
      this.#wait = PERIOD;
    } catch (caught) {
      error = caught;
      this.#wait = Math.min(2 * this.#wait, SLOWEST);
    }
    this.#asking = false;
    this.heard(error);
    const paused = error?.status === 401; // until there is a key
    if (!document.hidden && !paused) this.#timer = setTimeout(() => this.#ask(), this.#wait);
  }

  #take(now) {
    const before = this.#before;
    this.#before = now;
    const fresh = !before || now.uptime < before.uptime; // another process counts from zero
    if (fresh) {
      this.#series = { decode: [], prefill: [] };
      this.#mark = now;
    }
    this.#measure(now);
    this.#showRates();
    showGroups(now.groups);
    showFacts(now);
    if (fresh || changed(before, now)) showPlugins(now);
    const held = now.groups.reduce((sum, group) => sum + group.held, 0);
    const total = now.groups.reduce((sum, group) => sum + group.total, 0);
    by("digest").textContent = `${rate(this.#series.decode.at(-1) ?? 0)} tok/s · KV ${share(held, total)}`;
  }

  #measure(now) {
    const span = now.uptime - this.#mark.uptime;
    if (span < SHORTEST) return;
    this.#series.decode.push((now.generated_tokens - this.#mark.generated_tokens) / span);
    this.#series.prefill.push((now.prefill_tokens - this.#mark.prefill_tokens) / span);
    for (const series of Object.values(this.#series)) if (series.length > POINTS) series.shift();
    this.#mark = now;
  }

  #showRates() {
    for (const [name, series] of Object.entries(this.#series)) {
      const peak = Math.max(0, ...series);
      by(name).textContent = rate(series.at(-1) ?? 0);
      by(`${name}-peak`).textContent = rate(peak);
      draw(by(`${name}-line`), series, peak);
    }
  }
}

// A line over the last minute, the newest value at the right.
function draw(svg, series, peak) {
  const step = 120 / (POINTS - 1);
  const points = series.map((value, index) => {
    const x = 120 - (series.length - 1 - index) * step;
    return `${x.toFixed(1)} ${(30 - (peak ? (28 * value) / peak : 0)).toFixed(1)}`;
  });
  const line = points.length > 1 ? `M${points.join("L")}` : "";
  const from = (120 - (series.length - 1) * step).toFixed(1);
  svg.querySelector(".line").setAttribute("d", line);
  svg.querySelector(".area").setAttribute("d", line && `${line}L120 32L${from} 32Z`);
}

function showGroups(groups) {
  const place = by("groups");
  while (place.children.length > groups.length) place.lastElementChild.remove();
  groups.forEach((group, index) => {
    const node = place.children[index] ?? place.appendChild(clone("group"));
    const find = (selector) => node.querySelector(selector);
    const seen = group.window === null ? "" : `, window ${count(group.window)}`;
    const whose = group.owner === "model" ? "" : ` of the ${group.owner}`;
    find(".name").textContent = `${group.layers} layers${whose}${seen}`;
    find(".count").textContent = `${count(group.held + group.cached)} of ${count(group.total)}`;
    find(".held-count").textContent = `${count(group.held)} held`;
    find(".cached-count").textContent = `${count(group.cached)} cached`;
    find(".size").textContent = `${count(group.page_tokens)} tokens each`;
    find(".format").textContent = [group.format, group.open_format].filter(Boolean).join(" + ");
    find(".meter .held").style.width = width(group.held, group.total);
    find(".meter .cached").style.width = width(group.cached, group.total);
    const said = `${group.held} pages held and ${group.cached} cached of ${group.total}`;
    find(".meter").setAttribute("aria-label", said);
  });
}

// A single page of many can be seen too.
function width(pages, total) {
  return pages ? `max(3px, ${(100 * pages) / total}%)` : "0";
}

function showFacts(now) {
  const started = now.hit_tokens + now.tier_tokens + now.prefill_tokens;
  by("running").textContent = `${count(now.running)} of ${count(now.max_sequences)}`;
  by("waiting").textContent = count(now.waiting);
  by("hits").textContent = started ? `${share(now.hit_tokens, started)} (${count(now.hit_tokens)})` : "none yet";
  by("hits").title = `${now.hit_tokens} of ${started} prompt tokens came from the prefix cache`;
  by("drafts").textContent = drafts(now);
  by("preemptions").textContent = count(now.preemptions);
  by("steps").textContent = count(now.steps);
}

function drafts(now) {
  if (now.drafted) return `${share(now.accepted, now.drafted)} (${count(now.accepted)} of ${count(now.drafted)})`;
  return now.plugins.some((plugin) => plugin.kind === "speculator") ? "none yet" : "no speculator";
}

function changed(before, now) {
  return JSON.stringify([before.plugins, before.faults]) !== JSON.stringify([now.plugins, now.faults]);
}

function showPlugins(now) {
  by("plugin-count").textContent = count(now.plugins.length);
  const origins = new Set(now.plugins.map(origin));
  const all = origins.size === 1 ? ` All plugins from ${[...origins][0]}.` : "";
  by("engine").textContent =
    `${now.model}, ${now.dtype} on ${now.device}, context of ${count(now.max_model_tokens)} tokens.${all}`;
  by("plugin-list").replaceChildren(
    ...now.plugins.map((plugin) => {
      const node = clone("plugin");
      const faults = now.faults[`${plugin.kind}.${plugin.plugin}`] ?? 0;
      node.querySelector(".section").textContent = plugin.section;
      node.querySelector(".name").textContent = plugin.plugin;
      node.querySelector(".origin").textContent = faults
        ? `${count(faults)} ${faults === 1 ? "fault" : "faults"}`
        : all ? "" : origin(plugin);
      node.classList.toggle("faulty", faults > 0);
      return node;
    }),
  );
}

function origin(plugin) {
  return `${plugin.distribution} ${plugin.version}`;
}

function clone(id) {
  return by(id).content.cloneNode(true).firstElementChild;
}
