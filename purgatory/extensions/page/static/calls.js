// Streams and calls of the daemon. A stream is reopened when it ends, and reports the run of the daemon that serves it.

const AGAIN_MS = [250, 500, 1_000, 2_000];
const SILENT_MS_MAX = 25_000;

let token = sessionStorage.getItem("token") ?? "";

export function setToken(text) {
  token = text;
  sessionStorage.setItem("token", text);
}

const headers = () => (token ? { authorization: `Bearer ${token}` } : {});

export class Refused extends Error {
  constructor(status, fields) {
    super(fields?.message ?? `HTTP ${status}`);
    this.status = status;
    this.code = fields?.code ?? "";
  }
}

async function refusedBy(response) {
  const text = await response.text();
  try {
    return new Refused(response.status, JSON.parse(text));
  } catch {
    return new Refused(response.status, { message: text.trim() || `HTTP ${response.status}` });
  }
}

export async function call(method, request) {
  const response = await fetch(`/purgatory.v1.PurgatoryService/${method}`, {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify(request),
  });
  if (!response.ok) throw await refusedBy(response);
  return response.json();
}

export async function read(path, parameters, signal) {
  const response = await fetch(`${path}?${new URLSearchParams(parameters)}`, { headers: headers(), cache: "no-store", signal });
  if (!response.ok) throw await refusedBy(response);
  return response.json();
}

// Until the signal is aborted: calls take(data) with each picture, and refused(error) if the daemon refuses.
// told: {run(id), state(name, text), refused(error)}
export async function follow(path, parameters, take, told, signal) {
  const address = `${path}?${new URLSearchParams(parameters)}`;
  for (let attempt = 0; !signal.aborted; attempt += 1) {
    const silence = new AbortController();
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENT_MS_MAX);
    };
    try {
      heard();
      const response = await fetch(address, { headers: headers(), signal: AbortSignal.any([signal, silence.signal]), cache: "no-store" });
      if (!response.ok) throw await refusedBy(response);
      for await (const [name, data] of eventsOf(response.body, heard)) {
        if (signal.aborted) return;
        if (name === "run") {
          told.run(data.run);
          told.state("live", "live");
        } else if (name === "refused") throw new Refused(0, data);
        else {
          attempt = 0;
          take(data);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.code !== "unavailable" && error.status < 500) {
        told.refused(error);
        return;
      }
    } finally {
      clearTimeout(timer);
    }
    told.state("away", "connecting again");
    await new Promise((done) => setTimeout(done, AGAIN_MS[Math.min(attempt, AGAIN_MS.length - 1)]));
  }
}

async function* eventsOf(body, heard) {
  const decoder = new TextDecoder();
  let text = "";
  for await (const part of chunksOf(body)) {
    heard();
    text += decoder.decode(part, { stream: true });
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      let name = "";
      let data = "";
      for (const line of event.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) yield [name, JSON.parse(data)];
    }
  }
}

async function* chunksOf(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
