/**
 * The connection of all tabs of this page to the server. The tabs share one MCP session. One tab, the leader, reads the
 * GET stream of the session and passes the messages of the stream to the other tabs. If the leader is closed or does not
 * respond, another tab becomes the leader and resumes the stream after the last message.
 *
 * Every tab sends its own tool calls. The events of a conversation arrive while at least one tab follows the conversation.
 */

import { CallFailed, SessionLost, SignedOut, Unreachable, callTool, endSession, initialize, nextId, notify, readStream, request } from "./mcp.js"
import { Tabs } from "./tabs.js"

/** @typedef {import("./mcp.js").Message} Message */
/** @typedef {"connecting" | "live" | "lost" | "signed-out"} ConnectionState */

const SILENCE_MS = 35_000
/** The time in milliseconds without received bytes after which the GET stream counts as lost. The server sends a comment every 15 seconds. */

const RETRY_MS = [300, 1000, 2000, 4000, 8000, 15000]
const RESOURCES = ["parley://conversations", "parley://attention"]

export class Connection extends EventTarget {
  /** @param {{ clock?: () => number }} [options] */
  constructor({ clock = () => Date.now() } = {}) {
    super()
    this.clock = clock
    /** @type {ConnectionState} */
    this.state = "connecting"
    /** @type {number | null} the time of the next attempt to connect, in milliseconds; null unless the state is `lost` */
    this.retryAt = null
    /** @type {string | null} */
    this.session = null
    /** @type {Set<string>} */
    this.tools = new Set()
    /** @private @type {Map<string, () => number | undefined>} the conversations that this tab follows; each function returns the last position that this tab has received */
    this.following = new Map()
    /** @private @type {Map<string, { request: string, tabs: Set<string> }>} the streams that the leader has opened */
    this.streams = new Map()
    /** @private @type {string | null} */
    this.lastEventId = null
    /** @private */
    this.lastBytesAt = 0
    /** @private @type {AbortController | null} */
    this.reading = null
    /** @private @type {((value?: unknown) => void) | null} */
    this.wake = null
    /** @private */
    this.ended = false
    this.tabs = new Tabs({
      onLead: () => void this.lead(),
      onMessage: (message, from) => this.fromTab(message, from),
    })
  }

  start() {
    this.tabs.start()
    this.tabs.post({ type: "hello" })
    const check = () => this.check()
    addEventListener("online", check)
    addEventListener("offline", check)
    addEventListener("pageshow", check)
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") check()
    })
    setInterval(check, 5000)
    addEventListener("pagehide", (event) => {
      if (event.persisted) return
      for (const id of this.following.keys()) this.tabs.post({ type: "unfollow", id })
      if (this.tabs.leads && this.session && !this.tabs.others) void endSession(this.session).catch(() => {})
    })
  }

  /** Check whether the GET stream still receives bytes and whether the leader responds, for example after the computer was asleep. */
  check() {
    if (this.ended) return
    if (!this.tabs.leads) {
      if (document.visibilityState === "visible") this.tabs.checkLeader()
      return
    }
    if (this.reading && this.clock() - this.lastBytesAt > SILENCE_MS) this.reading.abort(new Unreachable(0))
    if (this.state === "lost" && navigator.onLine !== false) this.retryNow()
  }

  /** Try to connect again immediately. */
  retryNow() {
    if (!this.tabs.leads) this.tabs.post({ type: "retry" })
    this.wake?.()
  }

  // --- calls -------------------------------------------------------------------------------

  /**
   * Call a tool, and return the structured content of its result. If there is no session, wait until one has begun. If the
   * session was lost, repeat the call once.
   * @param {string} name
   * @param {object} [args]
   * @param {{ signal?: AbortSignal, id?: string }} [options]
   * @returns {Promise<any>}
   */
  async call(name, args = {}, options = {}) {
    for (let attempt = 0; ; attempt++) {
      const session = await this.ready()
      try {
        return await callTool(session, name, args, options)
      } catch (error) {
        if (error instanceof SignedOut) this.signedOut()
        if (!(error instanceof SessionLost) || attempt > 0) throw error
        this.sessionLost(session)
      }
    }
  }

  /** Return whether the role of the account allows a tool. @param {string} tool */
  may(tool) {
    return this.tools.has(tool)
  }

  /** @private @returns {Promise<string>} */
  async ready() {
    while (!this.session) {
      if (this.ended) throw new SignedOut()
      await new Promise((resolve) => this.addEventListener("session", resolve, { once: true }))
    }
    return this.session
  }

  /** @private @param {string} session */
  sessionLost(session) {
    if (this.session !== session) return
    this.session = null
    if (this.tabs.leads) this.reading?.abort(new SessionLost())
    else this.tabs.post({ type: "session-lost", session })
  }

  signedOut() {
    if (this.ended) return
    this.ended = true
    this.reading?.abort(new SignedOut())
    this.setState("signed-out")
    this.dispatchEvent(new Event("session"))
  }

  // --- following a conversation ------------------------------------------------------------------

  /**
   * Follow a conversation. A snapshot arrives as the next message, followed by the events of the conversation.
   * @param {string} id
   * @param {() => number | undefined} position returns the last position that this tab has received
   */
  follow(id, position) {
    this.following.set(id, position)
    this.announce(id)
  }

  /** @param {string} id */
  unfollow(id) {
    this.following.delete(id)
    if (this.tabs.leads) this.leave(id, this.tabs.me)
    else this.tabs.post({ type: "unfollow", id })
  }

  /** @private @param {string} id */
  announce(id) {
    const after = this.following.get(id)?.()
    if (this.tabs.leads) void this.open(id, this.tabs.me, after)
    else this.tabs.post({ type: "follow", id, after })
  }

  /**
   * Open the stream of a conversation for a tab. Only the leader calls this method. If the stream is already open,
   * open it again, so that the tab gets a snapshot. The other tabs ignore the events that they already have.
   * @private
   * @param {string} id
   * @param {string} tab
   * @param {number | undefined} after
   * @returns {Promise<void>}
   */
  async open(id, tab, after) {
    const stream = { request: nextId(), tabs: new Set([...(this.streams.get(id)?.tabs ?? []), tab]) }
    this.streams.set(id, stream)
    try {
      const start = after === undefined ? { last: FIRST_EVENTS } : { after }
      await this.call("conversationStream", { conversation_id: id, ...start }, { id: stream.request })
    } catch (error) {
      if (error instanceof CallFailed && error.code === "position_beyond_end") return this.open(id, tab, undefined)
      if (this.streams.get(id) !== stream) return
      this.streams.delete(id)
      this.share([{ method: "page/stream_failed", params: { conversation_id: id, message: String(/** @type {any} */ (error).message) } }])
    }
  }

  /**
   * @private
   * @param {string} id
   * @param {string} tab
   */
  leave(id, tab) {
    const stream = this.streams.get(id)
    if (!stream) return
    stream.tabs.delete(tab)
    if (stream.tabs.size || !this.session) return
    this.streams.delete(id)
    void notify(this.session, "notifications/cancelled", { requestId: stream.request }).catch(() => {})
  }

  // --- the tabs -----------------------------------------------------------------------------

  /**
   * @private
   * @param {any} message
   * @param {string} from
   */
  fromTab(message, from) {
    if (message.type === "messages" && !this.tabs.leads) {
      this.lastEventId = message.last ?? this.lastEventId
      this.deliver(message.messages)
    } else if (message.type === "status" && !this.tabs.leads) {
      const changed = this.session !== message.session
      this.session = message.session
      this.tools = new Set(message.tools)
      this.lastEventId = message.last ?? this.lastEventId
      this.setState(message.state, message.retryAt)
      if (message.state === "signed-out") this.ended = true
      if (changed && this.session) this.dispatchEvent(new Event("session"))
    } else if (message.type === "leader") {
      for (const id of this.following.keys()) this.announce(id) // a new leader does not know the conversations that this tab follows
    } else if (message.type === "changed") {
      this.dispatchEvent(new CustomEvent("changed", { detail: message.change }))
    } else if (this.tabs.leads) {
      if (message.type === "hello") this.status()
      else if (message.type === "follow") void this.open(message.id, from, message.after)
      else if (message.type === "unfollow") this.leave(message.id, from)
      else if (message.type === "session-lost") this.sessionLost(message.session)
      else if (message.type === "retry") this.wake?.()
    }
  }

  /** @private */
  status() {
    const { session, state, retryAt, lastEventId: last } = this
    this.tabs.post({ type: "status", session, state, retryAt, last, tools: [...this.tools] })
  }

  /**
   * @private
   * @param {Message[]} messages
   * @param {string | null} [last]
   */
  share(messages, last = null) {
    this.lastEventId = last ?? this.lastEventId
    if (this.tabs.others) this.tabs.post({ type: "messages", messages, last })
    this.deliver(messages)
  }

  /** @private @param {Message[]} messages */
  deliver(messages) {
    this.dispatchEvent(new CustomEvent("messages", { detail: messages }))
  }

  /** Notify the other tabs of a change for which the server sends no message. @param {any} change */
  tellTabs(change) {
    this.tabs.post({ type: "changed", change })
  }

  /**
   * @private
   * @param {ConnectionState} state
   * @param {number | null} [retryAt]
   */
  setState(state, retryAt = null) {
    if (this.ended && state !== "signed-out") return
    const changed = state !== this.state || retryAt !== this.retryAt
    this.state = state
    this.retryAt = retryAt
    if (changed) this.dispatchEvent(new Event("state"))
    if (changed && this.tabs.leads) this.status()
  }

  // --- the leader --------------------------------------------------------------------------------

  /** Begin sessions and read their GET streams until the tab is closed or the user is signed out. @private */
  async lead() {
    this.tabs.post({ type: "leader" })
    for (const id of this.following.keys()) this.streams.set(id, { request: nextId(), tabs: new Set([this.tabs.me]) })
    for (let failures = 0; !this.ended; ) {
      try {
        if (!this.session) await this.begin()
        await this.read(() => (failures = 0))
        throw new Unreachable(0) // the server has ended the stream
      } catch (error) {
        if (this.ended) return
        if (error instanceof SignedOut) return this.signedOut()
        if (error instanceof SessionLost || (error instanceof CallFailed && error.code === "unknown_event_id")) {
          if (error instanceof SessionLost) this.session = null
          this.lastEventId = null
          if (failures++ < 2) continue
        }
        const asked = error instanceof Unreachable ? error.seconds * 1000 : 0
        const wait = Math.max(asked, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)])
        failures++
        this.setState("lost", this.clock() + wait)
        await this.pause(wait)
      }
    }
  }

  /** @private @param {number} milliseconds */
  async pause(milliseconds) {
    const timer = setTimeout(() => this.wake?.(), milliseconds)
    await new Promise((resolve) => (this.wake = resolve))
    clearTimeout(timer)
    this.wake = null
  }

  /** Begin a session, and open the streams of all followed conversations in it. @private */
  async begin() {
    this.setState(this.state === "lost" ? "lost" : "connecting")
    const { session, tools } = await initialize()
    this.session = session
    this.tools = new Set(tools)
    this.lastEventId = null
    for (const uri of RESOURCES) await request(session, "resources/subscribe", { uri })
    this.status()
    this.dispatchEvent(new Event("session"))
    this.tabs.post({ type: "leader" }) // the other tabs respond with the conversations that they follow
    this.streams.clear()
    for (const id of this.following.keys()) this.announce(id)
  }

  /** @private @param {() => void} opened */
  async read(opened) {
    const session = await this.ready()
    this.reading = new AbortController()
    const signal = this.reading.signal
    this.lastBytesAt = this.clock()
    try {
      await readStream(session, {
        lastEventId: this.lastEventId,
        signal,
        onOpen: () => {
          this.lastBytesAt = this.clock()
          opened()
          this.setState("live")
          this.dispatchEvent(new Event("live"))
        },
        onBytes: () => (this.lastBytesAt = this.clock()),
        onMessages: (messages, last) => this.share(messages, last),
      })
    } catch (error) {
      throw signal.aborted ? signal.reason : error
    } finally {
      this.reading = null
    }
  }
}

/** The number of events that are loaded when a conversation is opened. Earlier events are loaded when they are needed. */
const FIRST_EVENTS = 300
