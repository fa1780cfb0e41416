/**
 * The items of a turn, such as messages, commands and patches. An item is changed in place while its events arrive.
 *
 * @typedef {{ principal?: string, decision: string, reason?: string, by: string }} Settlement
 *
 * @typedef {{ kind: "user", seq: number, id: string, parent?: string, content: any[], principal?: string }} UserItem
 * @typedef {{ kind: "text", seq: number, text: string, open: boolean }} TextItem
 * @typedef {{ kind: "reasoning", seq: number, text: string, open: boolean, raw: boolean }} ReasoningItem
 * @typedef {{ kind: "command", seq: number, callId: string, command: string[], cwd: string, reason?: string,
 *   state: "asking" | "denied" | "running" | "ended" | "stopped", output: Output, exitCode?: number, seconds?: number,
 *   settlement?: Settlement, startedAt?: number }} CommandItem
 * @typedef {{ kind: "patch", seq: number, callId: string, changes: Record<string, any>, reason?: string,
 *   state: "asking" | "denied" | "running" | "ended" | "stopped", success?: boolean, output: Output, message?: string,
 *   settlement?: Settlement }} PatchItem
 * @typedef {{ kind: "limit", seq: number, limit: string, used: number, allowed: number, callId: string,
 *   state: "asking" | "denied" | "ended" | "stopped", settlement?: Settlement }} LimitItem
 * @typedef {{ kind: "tool", seq: number, callId: string, server: string, tool: string, arguments: any, result?: any,
 *   state: "running" | "ended" | "stopped" }} ToolItem
 * @typedef {{ kind: "plan", seq: number, explanation: string | null, plan: { step: string, status: string }[] }} PlanItem
 * @typedef {{ kind: "note", seq: number, text: string }} NoteItem
 * @typedef {{ kind: "error", seq: number, text: string, reason?: string, principal?: string }} ErrorItem
 * @typedef {UserItem | TextItem | ReasoningItem | CommandItem | PatchItem | LimitItem | ToolItem | PlanItem | NoteItem
 *   | ErrorItem} Item
 *
 * @typedef {{ input: number, output: number, cached: number }} TokenCounts
 *
 * @typedef {{ seq: number, items: Item[], running: boolean, diff: string, tokens: TokenCounts | null,
 *   complete: boolean }} Turn
 *   A turn. `complete` is false if its beginning is not loaded.
 */

/** The number of characters that are compared to detect whether `exec_command_end` repeats output that was streamed. */
const COMPARED_CHARACTERS = 200

/** The output of a command: pieces of text in the order in which they arrived, without duplicates. */
export class Output {
  constructor() {
    /** @type {{ stream: string, text: string }[]} */
    this.pieces = []
    /** The number of characters of all pieces. */
    this.length = 0
    /** @private @type {Map<string, { bytes: number, decoder: TextDecoder }>} */
    this.streams = new Map()
  }

  /**
   * Add a chunk of bytes that begins at `offset` in `stream`. Bytes that were already added are skipped. Missing bytes are
   * marked as a gap.
   * @param {string} stream
   * @param {number[]} chunk
   * @param {number} [offset]
   */
  add(stream, chunk, offset) {
    let known = this.streams.get(stream)
    if (!known) this.streams.set(stream, (known = { bytes: 0, decoder: new TextDecoder() }))
    const start = offset ?? known.bytes
    if (start > known.bytes) {
      this.push("gap", `${start - known.bytes}`)
      known.bytes = start
    }
    const fresh = chunk.slice(known.bytes - start)
    if (!fresh.length) return
    known.bytes += fresh.length
    this.push(stream, known.decoder.decode(new Uint8Array(fresh), { stream: true }))
  }

  /** Return whether the output of a stream begins with the first `COMPARED_CHARACTERS` characters of `text`. @param {string} stream @param {string} text */
  has(stream, text) {
    const received = this.pieces.filter((piece) => piece.stream === stream).map((piece) => piece.text).join("")
    return received.startsWith(text.slice(0, COMPARED_CHARACTERS))
  }

  /** True if the last piece ends with a newline. */
  get endsLine() {
    return this.pieces.at(-1)?.text.endsWith("\n") ?? true
  }

  /**
   * @param {string} stream
   * @param {string} text
   */
  push(stream, text) {
    if (!text) return
    this.pieces.push({ stream, text })
    this.length += text.length
  }
}
