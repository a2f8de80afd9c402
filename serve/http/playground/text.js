// Text of a model into nodes. Only textContent is ever set: whatever a model writes stays text.

const FENCE = /^\s*```/;

// The text in blocks: plain ones, and those between lines that begin with three backticks.
export function blocks(text) {
  const found = [];
  let lines = [];
  let code = false;
  const close = () => {
    if (lines.length) found.push({ code, text: lines.join("\n") });
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (FENCE.test(line)) {
      close();
      code = !code;
    } else {
      lines.push(line);
    }
  }
  close();
  return found;
}

// Shows a text that grows: blocks that stay the same are left alone.
export function showText(node, text) {
  const wanted = blocks(text);
  while (node.children.length > wanted.length) node.lastElementChild.remove();
  wanted.forEach((block, index) => {
    const tag = block.code ? "PRE" : "P";
    let child = node.children[index];
    if (child?.tagName !== tag) {
      const fresh = document.createElement(tag);
      if (block.code) fresh.tabIndex = 0; // it may scroll
      if (child) child.replaceWith(fresh);
      else node.append(fresh);
      child = fresh;
    }
    if (child.textContent !== block.text) child.textContent = block.text;
  });
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });

export function count(value) {
  return whole.format(value).replaceAll(",", "\u202f");
}

// Tokens per second: a digit behind the point below 100.
export function rate(value) {
  return value >= 100 || value === 0 ? count(value) : tenths.format(value);
}

export function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

export function share(part, all) {
  const percent = all ? (100 * part) / all : 0;
  return `${percent > 0 && percent < 1 ? "<1" : Math.round(percent)}\u202f%`;
}
