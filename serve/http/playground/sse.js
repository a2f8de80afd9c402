// Server-sent events out of a response's body: https://html.spec.whatwg.org/multipage/server-sent-events.html
// Chunks may end anywhere: inside a character, a line end or an event.

export class EventParser {
  #rest = "";
  #data = [];

  // The data of the events that are complete with this piece of text.
  push(text) {
    const found = [];
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) found.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line === "data" || line.startsWith("data:")) {
        this.#data.push(line.slice(5).replace(/^ /, ""));
      }
    }
    return found;
  }
}

// Yields the data of each event as it comes; an event that was cut off is dropped.
export async function* events(response) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      yield* parser.push(done ? decoder.decode() : decoder.decode(value, { stream: true }));
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
