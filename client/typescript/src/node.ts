// For Node: sessions over gRPC. Has everything that the package has.
import type { SecureClientSessionOptions } from "node:http2";
import type { Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { Session, type SessionOptions } from "./session.js";

export * from "./session.js";

/** Notices a daemon that hangs. */
const PINGS = { pingIntervalMs: 1_000, pingTimeoutMs: 1_000 };

export interface ConnectOptions extends SessionOptions {
  /** Encrypts the connection: `{}` trusts the public authorities, `{ ca }` others. */
  tls?: SecureClientSessionOptions;
  /** A bearer token, or a function that returns it for each call. Needs `tls`. */
  token?: string | (() => string);
}

/** Opens a session at the daemon at "127.0.0.1:7440". Of several ("a:7440,b:7440") it uses the one that serves. */
export function connect(addresses: string, { tls, token, ...options }: ConnectOptions = {}): Session {
  if (token && !tls) throw new TypeError("a token is sent over TLS only: give `tls`");
  const showToken: Interceptor = (next) => (request) => {
    if (token) request.header.set("authorization", `Bearer ${typeof token === "string" ? token : token()}`);
    return next(request);
  };
  const wrong = addresses.split(",").find((one) => !/^(\[[^\]]+\]|[^:]+):\d+$/.test(one));
  if (wrong !== undefined) throw new TypeError(`"${wrong}" is not HOST:PORT`);
  const urls = addresses.split(",").map((one) => `${tls ? "https" : "http"}://${one}`);
  const managers = urls.map((url) => new Http2SessionManager(url, PINGS, tls));
  const transports = managers.map((sessionManager) =>
    createGrpcTransport({ baseUrl: sessionManager.authority, sessionManager, interceptors: [showToken] }),
  );
  const session = new Session(transports, crypto.randomUUID(), options);
  const close = session.close.bind(session);
  // Open connections would keep the program alive.
  session.close = () => close().finally(() => managers.forEach((one) => one.abort()));
  return session;
}
