/**
 * The state of one conversation in this tab: turns and their items, built from the events of the stream. An event may
 * arrive twice, for example after a reconnection or because another tab has opened the stream. The position or offset of
 * the event ensures that the event takes effect only once. This module does not draw. It calls a view after each change.
 */

import { Output } from "./items.js"

/**
 * @typedef {import("./items.js").Item} Item
 * @typedef {import("./items.js").Turn} Turn
 * @typedef {import("./items.js").CommandItem} CommandItem
 * @typedef {import("./items.js").PatchItem} PatchItem
 * @typedef {{ approval_id: string, call_id: string, kind: "exec" | "patch" | "limit", message: string,
 *   asked_at?: string, command?: string[], cwd?: string, changes?: Record<string, any>,
 *   leaves_sandbox?: boolean, conversation_id: string }} Approval
 * @typedef {{ reset(): void, prepended(turns: Turn[], merged: Turn | null): void, turnAdded(turn: Turn): void,
 *   turnChanged(turn: Turn): void, itemAdded(turn: Turn, item: Item): void, itemChanged(turn: Turn, item: Item): void,
 *   itemRemoved(turn: Turn, item: Item): void, stateChanged(): void }} ConversationView
 */

/** The exit code of a command that did not start, was killed, or ran out of time. */
const NO_EXIT_CODE = -1

/** @type {ConversationView} */
const NO_VIEW = {
  reset() {},
  prepended() {},
  turnAdded() {},
  turnChanged() {},
  itemAdded() {},
  itemChanged() {},
  itemRemoved() {},
  stateChanged() {},
}

const OPEN_TYPES = /** @type {Record<string, "text" | "reasoning">} */ ({
  agent_message_delta: "text",
  agent_reasoning_delta: "reasoning",
  agent_reasoning_raw_content_delta: "reasoning",
})

export class Conversation {
  /** @param {string} id */
  constructor(id) {
    this.id = id
    /** @type {Turn[]} in the order of the log */
    this.turns = []
    /** @type {number | undefined} the last position that this tab has received */
    this.seq = undefined
    /** @type {number | undefined} the argument `before` of `conversationRead` that loads the earlier events; undefined if all events are loaded */
    this.before = undefined
    /** True after the first snapshot has arrived. */
    this.loaded = false
    /** @type {Approval | null} */
    this.approval = null
    /** @type {{ messages: string[], paused: boolean }} */
    this.queue = { messages: [], paused: false }
    /** @type {{ message: string, code?: string } | null} the reason why the stream has ended; null while it is open */
    this.disconnected = null
    /** @type {ConversationView} */
    this.view = NO_VIEW
    /** @private @type {Map<string, { turn: Turn, item: any, points: number, fresh: boolean }>} the open items, keyed by item id */
    this.open = new Map()
    /** @private @type {Map<string, { turn: Turn, item: any }>} the commands, patches and tool calls, keyed by call id */
    this.calls = new Map()
    /** @private @type {any[]} the events of the first loaded turn if its beginning is not loaded; otherwise empty */
    this.head = []
  }

  /** @returns {"idle" | "running" | "asking"} */
  get state() {
    const turn = this.turns.at(-1)
    if (!turn?.running) return "idle"
    return turn.items.some((item) => "state" in item && item.state === "asking") ? "asking" : "running"
  }

  /** Remove the view. */
  detach() {
    this.view = NO_VIEW
  }

  // --- messages of the stream ------------------------------------------------------------------

  /**
   * Handle a snapshot. `params` are the params of `notifications/initial_state`.
   * @param {any} params
   */
  snapshot(params) {
    const events = params.initial_state.events
    const first = events.find((/** @type {any} */ event) => event._meta?.seq !== undefined)?._meta.seq
    const isGap = this.seq !== undefined && params._meta.before !== undefined && first !== undefined && first > this.seq
    const isFirst = !this.loaded || isGap
    this.disconnected = null
    if (isFirst) {
      const view = this.view
      this.view = NO_VIEW
      Object.assign(this, { turns: [], seq: undefined, open: new Map(), calls: new Map(), head: [] })
      this.before = params._meta.before
      for (const event of events) this.event(event)
      this.seq = Math.max(this.seq ?? 0, params._meta.seq ?? 0)
      this.loaded = true
      this.view = view
      view.reset()
    } else {
      for (const open of this.open.values()) open.fresh = false
      for (const event of events) this.event(event)
      this.seq = Math.max(this.seq ?? 0, params._meta.seq ?? 0)
      for (const [id, open] of this.open) if (!open.fresh) this.discard(id)
    }
    this.view.stateChanged()
  }

  /**
   * Handle one event. `event.msg` is the event, and `event._meta` contains its position.
   * @param {any} event
   */
  event(event) {
    const { msg, _meta: meta = {} } = event
    if (msg.type === "exec_command_output_delta") return this.output(msg, meta)
    if (msg.type in OPEN_TYPES) return this.delta(msg, meta)
    if (meta.seq !== undefined) {
      if (this.seq !== undefined && meta.seq <= this.seq) return
      this.seq = meta.seq
    }
    if (this.head.length === 0 && this.turns.length === 0 && msg.type !== "task_started" && msg.type !== "queue_changed")
      this.addTurn({ seq: meta.seq ?? 0, items: [], running: true, diff: "", tokens: null, complete: false })
    if (this.turns.length === 1 && !this.turns[0].complete) this.head.push(event)
    this.apply(msg, meta.seq ?? 0)
  }

  /**
   * Add earlier events. `page` is the result of `conversationRead` with `before`.
   * @param {{ events: any[], before?: number }} page
   */
  prepend(page) {
    const events = page.events.map(({ seq, item, offset, msg }) => ({ _meta: { seq, item, offset }, msg }))
    const earlier = new Conversation(this.id)
    earlier.before = page.before
    const old = this.turns[0]
    const joins = old !== undefined && !old.complete
    for (const event of joins ? [...events, ...this.head] : events) earlier.event(event)
    this.before = page.before
    let merged = null
    if (joins && old) {
      const last = earlier.turns.pop()
      if (last) {
        // The items of the incomplete turn are reused, so that open items and views stay attached to them.
        const count = last.items.length - old.items.length
        const fresh = last.items.slice(0, Math.max(0, count))
        old.items.unshift(...fresh)
        old.seq = last.seq
        old.complete = last.complete
        old.tokens = last.tokens ?? old.tokens
        for (const [id, call] of earlier.calls) if (fresh.includes(call.item)) this.calls.set(id, { turn: old, item: call.item })
        merged = old
      }
      this.head = old.complete ? [] : [...earlier.head]
    }
    this.turns.unshift(...earlier.turns)
    if (!joins) this.head = earlier.head
    this.view.prepended(earlier.turns, merged)
  }

  /**
   * Handle an approval request of the server.
   * @param {any} params the params of `elicitation/create`
   */
  asked(params) {
    this.approval = {
      approval_id: params.parley_approval_id,
      conversation_id: this.id,
      call_id: params.codex_call_id,
      kind: params.codex_elicitation === "limit" ? "limit" : params.codex_elicitation === "patch-approval" ? "patch" : "exec",
      message: params.message,
      command: params.codex_command,
      cwd: params.codex_cwd,
      changes: params.codex_changes,
      leaves_sandbox: params.parley_leaves_sandbox === true,
    }
    this.view.stateChanged()
  }

  /** @param {any} params the params of `notifications/stream_disconnected` */
  streamEnded(params) {
    this.disconnected = { message: params.reason ?? "The stream has ended.", code: params.code }
    this.view.stateChanged()
  }

  // --- events ------------------------------------------------------------------------------

  /**
   * @private
   * @param {any} msg
   * @param {number} seq
   */
  apply(msg, seq) {
    switch (msg.type) {
      case "task_started":
        this.addTurn({ seq, items: [], running: true, diff: "", tokens: null, complete: true })
        this.view.stateChanged()
        break
      case "user_message":
        this.add({
          kind: "user",
          seq,
          id: msg.message_id,
          parent: msg.parent_message_id,
          content: msg.content,
          principal: msg.principal,
        })
        break
      case "agent_message":
        this.settle("text", { kind: "text", seq, text: msg.message, open: false })
        break
      case "agent_reasoning":
      case "agent_reasoning_raw_content":
        this.settle("reasoning", { kind: "reasoning", seq, text: msg.text, open: false, raw: msg.type !== "agent_reasoning" })
        break
      case "exec_approval_request":
        this.call(msg.call_id, seq, { kind: "command", command: msg.command, cwd: msg.cwd, reason: msg.reason, state: "asking" })
        this.view.stateChanged()
        break
      case "exec_command_begin":
        this.call(msg.call_id, seq, { kind: "command", command: msg.command, cwd: msg.cwd, state: "running" })
        break
      case "exec_command_end": {
        const item = this.changed(msg.call_id, { state: "ended", exitCode: msg.exit_code, seconds: seconds(msg.duration) })
        if (item?.kind !== "command") break
        if (item.output.length === 0) {
          item.output.push("stdout", msg.stdout)
          item.output.push("stderr", msg.stderr)
        } else if (msg.exit_code === NO_EXIT_CODE && !item.output.has("stderr", msg.stderr)) item.output.push("stderr", `${item.output.endsLine ? "" : "\n"}${msg.stderr}`)
        break
      }
      case "apply_patch_approval_request":
        this.call(msg.call_id, seq, { kind: "patch", changes: msg.changes, reason: msg.reason, state: "asking" })
        this.view.stateChanged()
        break
      case "patch_apply_begin":
        this.call(msg.call_id, seq, { kind: "patch", changes: msg.changes, state: "running" })
        break
      case "patch_apply_end":
        this.changed(msg.call_id, { state: "ended", success: msg.success, message: msg.success ? "" : msg.stderr || msg.stdout })
        break
      case "patch_refused": {
        const fields = { state: "ended", success: false, message: msg.message }
        // A patch that was approved may no longer match the files.
        if (this.isOpen(msg.call_id, "patch")) this.changed(msg.call_id, fields)
        else this.note(seq, `Patch not applied: ${msg.message}`)
        break
      }
      case "limit_reached":
        this.call("", seq, { kind: "limit", limit: msg.limit, used: amount(msg.limit, msg.used), allowed: amount(msg.limit, msg.allowed), state: "asking" })
        this.view.stateChanged()
        break
      case "approval_settled":
        this.settled(msg)
        break
      case "mcp_tool_call_begin":
        this.call(msg.call_id, seq, {
          kind: "tool",
          server: msg.invocation.server,
          tool: msg.invocation.tool,
          arguments: msg.invocation.arguments,
          state: "running",
        })
        break
      case "mcp_tool_call_end":
        this.changed(msg.call_id, { state: "ended", result: msg.result })
        break
      case "plan_update":
        this.add({ kind: "plan", seq, explanation: msg.explanation, plan: msg.plan })
        break
      case "turn_diff": {
        const turn = this.turns[this.turns.length - 1]
        turn.diff = msg.unified_diff
        this.view.turnChanged(turn)
        break
      }
      case "token_count": {
        const turn = this.turns[this.turns.length - 1]
        const counts = turn.tokens ?? { input: 0, output: 0, cached: 0 }
        counts.input += msg.input_tokens
        counts.output += msg.output_tokens
        counts.cached += msg.cached_input_tokens ?? 0
        turn.tokens = counts
        this.view.turnChanged(turn)
        break
      }
      case "request_retry":
        this.note(seq, `The model did not answer (${msg.reason}). Retry ${msg.attempt} of ${msg.max_attempts} in ${(msg.delay_ms / 1000).toFixed(1)} s.`)
        break
      case "web_search":
        this.note(seq, `Searched the web: ${msg.query} (${msg.error ?? `${msg.results.length} results`})`)
        break
      case "background_event":
        this.discardAll()
        this.note(seq, msg.message)
        break
      case "queue_changed":
        this.queue = { messages: msg.messages, paused: msg.paused }
        this.view.stateChanged()
        break
      case "error":
        this.discardAll()
        this.add({ kind: "error", seq, text: msg.message, reason: msg.reason, principal: msg.principal })
        if (msg.reason !== undefined && msg.reason !== "failed") this.endTurn()
        break
      case "task_complete":
        this.discardAll()
        this.endTurn()
        break
    }
  }

  /** @private @param {Turn} turn */
  addTurn(turn) {
    const last = this.turns.at(-1)
    if (last?.running) this.endTurn()
    this.turns.push(turn)
    this.view.turnAdded(turn)
  }

  /** @private */
  endTurn() {
    const turn = this.turns.at(-1)
    if (!turn) return
    turn.running = false
    for (const item of turn.items)
      if ("state" in item && (item.state === "running" || item.state === "asking")) {
        item.state = "stopped"
        this.view.itemChanged(turn, item)
      }
    this.approval = null
    this.view.turnChanged(turn)
    this.view.stateChanged()
  }

  /** @private @param {Item} item */
  add(item) {
    const turn = this.turns[this.turns.length - 1]
    if (!turn) return
    turn.items.push(item)
    this.view.itemAdded(turn, item)
  }

  /**
   * @private
   * @param {number} seq
   * @param {string} text
   */
  note(seq, text) {
    this.add({ kind: "note", seq, text })
  }

  /**
   * Add a command, patch or tool call to the turn. If the same call is already shown, for example because of its approval
   * request, change the existing item instead. A model may use a call id again: a call of an earlier turn, a call that has
   * ended or was denied, and a call with a settled approval request, if this is a new request, are other calls.
   * @private
   * @param {string} id
   * @param {number} seq
   * @param {any} fields
   */
  call(id, seq, fields) {
    const turn = this.turns[this.turns.length - 1]
    if (!turn) return
    if (this.isOpen(id, fields.kind) && !(fields.state === "asking" && this.calls.get(id)?.item.settlement)) {
      this.changed(id, fields)
      return
    }
    const item = { seq, callId: id, output: new Output(), ...fields }
    this.calls.set(id, { turn, item })
    this.add(item)
  }

  /**
   * Return whether a call of the last turn is waiting for an approval or is running.
   * @private
   * @param {string} id
   * @param {string} kind
   */
  isOpen(id, kind) {
    const known = this.calls.get(id)
    return known?.turn === this.turns.at(-1) && known?.item.kind === kind && (known.item.state === "asking" || known.item.state === "running")
  }

  /**
   * @private
   * @param {string} id
   * @param {any} fields
   * @returns {any}
   */
  changed(id, fields) {
    const known = this.calls.get(id)
    if (!known) return undefined
    Object.assign(known.item, fields)
    this.view.itemChanged(known.turn, known.item)
    return known.item
  }

  /** @private @param {any} msg */
  settled(msg) {
    const { decision, reason, by, principal } = msg
    const isApproved = decision === "approved" || decision === "approved_for_session"
    const known = this.calls.get(msg.call_id)
    const isLimit = known?.item.kind === "limit"
    this.changed(msg.call_id, {
      settlement: { decision, reason, by, principal },
      state: isApproved ? (isLimit ? "ended" : "running") : decision === "dropped" ? "stopped" : "denied",
    })
    this.approval = null
    this.view.stateChanged()
  }

  // --- open items ---------------------------------------------------------

  /**
   * @private
   * @param {any} msg
   * @param {any} meta
   */
  delta(msg, meta) {
    const turn = this.turns.at(-1)
    if (!turn) return
    let open = this.open.get(meta.item)
    if (!open) {
      const kind = OPEN_TYPES[msg.type]
      /** @type {any} */
      const item = { kind, seq: (this.seq ?? 0) + 0.5, text: "", open: true, raw: msg.type === "agent_reasoning_raw_content_delta" }
      open = { turn, item, points: 0, fresh: true }
      this.open.set(meta.item, open)
      turn.items.push(item)
      this.view.itemAdded(turn, item)
    }
    open.fresh = true
    const skip = open.points - (meta.offset ?? open.points)
    const text = skip > 0 ? Array.from(msg.delta).slice(skip).join("") : msg.delta
    if (!text) return
    open.item.text += text
    open.points += codePoints(text)
    this.view.itemChanged(open.turn, open.item)
  }

  /**
   * Convert the open item of a kind to `final`, the item of its final event. If no such item is open, add `final`.
   * @private
   * @param {"text" | "reasoning"} kind
   * @param {Item} final
   */
  settle(kind, final) {
    for (const [id, { turn, item }] of this.open) {
      if (item.kind !== kind) continue
      this.open.delete(id)
      Object.assign(item, final)
      this.view.itemChanged(turn, item)
      return
    }
    this.add(final)
  }

  /** @private */
  discardAll() {
    for (const id of [...this.open.keys()]) this.discard(id)
  }

  /** @private @param {string} id */
  discard(id) {
    const open = this.open.get(id)
    if (!open) return
    this.open.delete(id)
    open.turn.items.splice(open.turn.items.indexOf(open.item), 1)
    this.view.itemRemoved(open.turn, open.item)
  }

  /**
   * @private
   * @param {any} msg
   * @param {any} meta
   */
  output(msg, meta) {
    if (meta.seq !== undefined && this.head.length && this.turns.length === 1) this.head.push({ msg, _meta: meta })
    const known = this.calls.get(msg.call_id)
    if (!known || known.item.state === "ended" || known.item.state === "stopped") return
    known.item.output.add(msg.stream, msg.chunk, meta.offset)
    this.view.itemChanged(known.turn, known.item)
  }
}

/**
 * Return the used amount of a limit in the unit of the limit. The server sends amounts of money in millionths.
 * @param {string} limit
 * @param {number} used
 */
function amount(limit, used) {
  return limit.endsWith("_cost") ? used / 1e6 : used
}

/** @param {string} text */
function codePoints(text) {
  let count = 0
  for (let index = 0; index < text.length; index++) {
    const unit = text.charCodeAt(index)
    if (unit < 0xdc00 || unit > 0xdfff) count++
  }
  return count
}

/** @param {{ secs: number, nanos: number } | undefined} duration */
function seconds(duration) {
  return duration ? duration.secs + duration.nanos / 1e9 : undefined
}
