/**
 * An MCP session over Streamable HTTP, version 2025-11-25. The page sends requests with POST, and the server sends messages
 * in one GET stream. This module does not reconnect. `connection.js` decides when to connect again.
 */

import { uuid } from "../dom.js"
import { credentials } from "./sign_in.js"
import { EventParser } from "./sse.js"

const VERSION = "2025-11-25"

/** @typedef {{ jsonrpc?: string, id?: string | number, method?: string, params?: any, result?: any, error?: any }} Message */

/** Thrown when the server refuses a request, or a tool fails. `code` is the stable error code. */
export class CallFailed extends Error {
  /**
   * @param {string} message
   * @param {string} [code]
   * @param {any} [details]
   */
  constructor(message, code = "", details = {}) {
    super(message)
    this.code = code
    this.details = details
  }
}

/** Thrown when the server cannot be reached, or asks the client to wait. `status` is 0 if there was no response. */
export class Unreachable extends Error {
  /**
   * @param {number} status
   * @param {number} [seconds] the time for which the server asks the client to wait; 0 if the server did not ask
   */
  constructor(status, seconds = 0) {
    super(status ? `the server answered ${status}` : "the server cannot be reached")
    this.status = status
    this.seconds = seconds
  }
}

/** Thrown when the session no longer exists. */
export class SessionLost extends Error {}

/** Thrown when the page is not signed in. */
export class SignedOut extends Error {}

const prefix = uuid().slice(0, 8)
let count = 0

/** Return a request id that no other tab uses. */
export function nextId() {
  return `${prefix}.${++count}`
}

/**
 * Send one HTTP request. Throw one of the errors of this module if the request fails.
 * @param {string} method
 * @param {string | null} session
 * @param {{ body?: string, headers?: Record<string, string>, signal?: AbortSignal, keepalive?: boolean }} [options]
 * @returns {Promise<Response>}
 */
async function send(method, session, { body, headers = {}, signal, keepalive } = {}) {
  /** @type {Record<string, string>} */
  const all = { ...credentials(), Accept: "application/json, text/event-stream", ...headers }
  if (body !== undefined) all["Content-Type"] = "application/json"
  if (session) Object.assign(all, { "Mcp-Session-Id": session, "MCP-Protocol-Version": VERSION })
  let response
  try {
    response = await fetch("./mcp", { method, body, headers: all, signal, keepalive, cache: "no-store" })
  } catch (error) {
    if (signal?.aborted) throw error
    throw new Unreachable(0)
  }
  if (response.ok) return response
  if (response.status === 401) throw new SignedOut()
  const text = await response.text().catch(() => "")
  const error = parsed(text)?.error
  if (response.status === 404 || error?.data?.code === "session_missing") throw new SessionLost()
  if (response.status === 429 || response.status >= 500)
    throw new Unreachable(response.status, Number(response.headers.get("Retry-After")) || 1)
  throw new CallFailed(error?.message ?? `the server answered ${response.status}`, error?.data?.code ?? "")
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text)
  } catch {
    return null
  }
}

/**
 * Begin a session. Return its id, and the names of the tools that the role of the account allows.
 * @returns {Promise<{ session: string, tools: string[] }>}
 */
export async function initialize() {
  const params = {
    protocolVersion: VERSION,
    capabilities: { elicitation: {} },
    clientInfo: { name: "parley-page", title: "Parley page", version: "1" },
  }
  const response = await send("POST", null, {
    body: JSON.stringify({ jsonrpc: "2.0", id: nextId(), method: "initialize", params }),
  })
  const session = response.headers.get("Mcp-Session-Id")
  const answer = await response.json()
  if (!session || answer.error) throw new CallFailed(answer.error?.message ?? "no session")
  await notify(session, "notifications/initialized", {})
  const listed = await request(session, "tools/list", {})
  return { session, tools: listed.tools.map((/** @type {any} */ tool) => tool.name) }
}

/**
 * @param {string} session
 * @param {string} method
 * @param {object} params
 * @param {{ id?: string, signal?: AbortSignal }} [options]
 * @returns {Promise<any>} the result
 */
export async function request(session, method, params, { id = nextId(), signal } = {}) {
  const response = await send("POST", session, {
    body: JSON.stringify({ jsonrpc: "2.0", id, method, params }),
    signal,
  })
  let answer
  try {
    answer = await response.json()
  } catch (error) {
    if (signal?.aborted) throw error
    throw new Unreachable(0)
  }
  if (answer.error) throw new CallFailed(answer.error.message, answer.error.data?.code, answer.error.data)
  return answer.result
}

/**
 * Call a tool, and return the structured content of its result.
 * @param {string} session
 * @param {string} name
 * @param {object} args
 * @param {{ id?: string, signal?: AbortSignal }} [options]
 * @returns {Promise<any>}
 */
export async function callTool(session, name, args, options) {
  const result = await request(session, "tools/call", { name, arguments: args }, options)
  const details = result.structuredContent ?? {}
  if (result.isError) throw new CallFailed(details.message ?? result.content?.[0]?.text ?? "failed", details.code, details)
  return details
}

/**
 * @param {string} session
 * @param {string} method
 * @param {object} params
 */
export async function notify(session, method, params) {
  await send("POST", session, { body: JSON.stringify({ jsonrpc: "2.0", method, params }) })
}

/**
 * End a session. The browser sends the request even if the page is being closed.
 * @param {string} session
 */
export async function endSession(session) {
  await send("DELETE", session, { keepalive: true })
}

/**
 * Read the GET stream until it ends. If `lastEventId` is given, resume after the event with this id.
 * @param {string} session
 * @param {{ lastEventId: string | null, signal: AbortSignal, onOpen: () => void,
 *   onBytes: () => void, onMessages: (messages: Message[], lastEventId: string | null) => void }} options
 */
export async function readStream(session, { lastEventId, signal, onOpen, onBytes, onMessages }) {
  /** @type {Record<string, string>} */
  const headers = lastEventId ? { "Last-Event-ID": lastEventId } : {}
  const response = await send("GET", session, { headers, signal })
  if (!response.body) throw new Unreachable(0)
  onOpen()
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  const parser = new EventParser()
  for (;;) {
    let piece
    try {
      piece = await reader.read()
    } catch (error) {
      if (signal.aborted) throw error
      throw new Unreachable(0)
    }
    onBytes()
    if (piece.done) return
    const events = parser.feed(piece.value)
    if (!events.length) continue
    const last = events.filter((event) => event.id !== null).at(-1)
    onMessages(events.map((event) => JSON.parse(event.data)), last?.id ?? null)
  }
}
