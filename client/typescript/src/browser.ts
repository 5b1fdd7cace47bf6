// For browsers, which have no bidirectional streams: server streams by the Connect protocol, from the HTTP port.
import { createConnectTransport } from "@connectrpc/connect-web";
import { Session, type SessionOptions } from "./session.js";

export * from "./session.js";

/** `url`: of the daemon's HTTP port, as "http://127.0.0.1:7441". */
export function openSession(url: string, options?: SessionOptions): Session {
  return new Session(createConnectTransport({ baseUrl: url }), crypto.randomUUID(), options);
}
