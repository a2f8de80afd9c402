// Requests to the server. Paths are relative to the page, so that any prefix of a proxy does.

const SLOT = "tokloom.key";
let key = stored();

function stored() {
  try {
    return sessionStorage.getItem(SLOT) ?? "";
  } catch {
    return ""; // storage is switched off: the key lives as long as the page
  }
}

export function hasKey() {
  return key !== "";
}

export function useKey(value) {
  key = value;
  try {
    if (value) sessionStorage.setItem(SLOT, value);
    else sessionStorage.removeItem(SLOT);
  } catch {
    // as above
  }
}

// What the server, or the way to it, answered instead of a result. `status` 0: nothing came.
export class ApiError extends Error {
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// The response if its status is 200; else an ApiError with the server's own words. A signal's abort passes through.
export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted || error instanceof ApiError) throw error;
    throw new ApiError("The server cannot be reached.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let said = null;
  try {
    said = (await response.json()).error;
  } catch {
    // not the server's own answer
  }
  return asError(said, response.status);
}

// An error object of the API, from a body or a stream.
export function asError(said, status = 500) {
  const message = typeof said?.message === "string" ? said.message : `The server answered with status ${status}.`;
  return new ApiError(message, status, said?.code ?? "");
}
