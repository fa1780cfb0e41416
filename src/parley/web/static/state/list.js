/**
 * The list of conversations, and the list of conversations that need attention. Both lists are loaded again when the
 * server reports a change.
 */

/**
 * @typedef {{ conversation_id: string, title: string, updated_at: string, cwd: string, state: "idle" | "running" | "asking",
 *   unread?: boolean, failed?: boolean }} Entry
 * @typedef {{ conversation_id: string, title: string, cwd: string, state: "waiting" | "failed" | "finished", since: string,
 *   approval?: import("./conversation.js").Approval, reason?: string, message?: string, seq?: number }} Attention
 * @typedef {"all" | "working" | "failed" | "unread" | "archived"} Filter
 */

const PAGE = 200
/** The largest number of conversations that the server lists at once. */
const MAX = 10_000

export class ConversationList extends EventTarget {
  /** @param {import("../protocol/connection.js").Connection} connection */
  constructor(connection) {
    super()
    this.connection = connection
    /** @type {Entry[]} */
    this.entries = []
    /** @type {Attention[]} */
    this.attention = []
    /** @type {Filter} */
    this.filter = "all"
    /** @type {string | undefined} */
    this.nextCursor = undefined
    this.loaded = false
    /** @private */
    this.count = PAGE
    /** @private true if all conversations are needed, not only the newest ones */
    this.needsAll = false
    /** @private @type {Promise<void> | null} */
    this.loading = null
    /** @private */
    this.again = false
    connection.addEventListener("messages", (event) => {
      const messages = /** @type {CustomEvent} */ (event).detail
      if (messages.some((/** @type {any} */ message) => message.method === "notifications/resources/updated")) void this.refresh()
    })
    connection.addEventListener("session", () => void this.refresh())
    connection.addEventListener("changed", () => void this.refresh())
  }

  /** Load both lists. If the lists are already being loaded, they are loaded once more afterwards. @returns {Promise<void>} */
  refresh() {
    if (this.loading) {
      this.again = true
      return this.loading
    }
    this.loading = this.load()
      .catch(() => {}) // the lists are loaded again after the next notification or reconnection
      .finally(() => {
        this.loading = null
        if (this.again) {
          this.again = false
          void this.refresh()
        }
      })
    return this.loading
  }

  /** @private */
  async load() {
    const archived = this.filter === "archived"
    const { needsAll } = this
    const [listed, attention] = await Promise.all([
      this.connection.call("conversationsList", { limit: needsAll ? MAX : this.count, ...(archived ? { archived } : {}) }),
      this.connection.call("attentionList", { limit: 200 }),
    ])
    if (archived !== (this.filter === "archived")) {
      this.again = true
      return
    }
    if (this.needsAll && !needsAll) this.again = true
    this.entries = listed.conversations
    this.nextCursor = listed.next_cursor
    this.attention = attention.conversations
    this.loaded = true
    this.dispatchEvent(new Event("change"))
  }

  loadMore() {
    this.count = Math.min(MAX, this.count * 4)
    return this.refresh()
  }

  /** Set whether all conversations are loaded. A search or a filter needs all conversations. @param {boolean} needsAll */
  setNeedsAll(needsAll) {
    if (needsAll === this.needsAll) return
    this.needsAll = needsAll
    if (this.nextCursor || this.entries.length > this.count) void this.refresh()
  }

  /** True if all conversations are loaded, or the maximum number that the server lists. */
  get isComplete() {
    return !this.nextCursor || this.entries.length >= MAX
  }

  /** @param {Filter} filter */
  setFilter(filter) {
    const reload = (filter === "archived") !== (this.filter === "archived")
    this.filter = filter
    if (reload) {
      this.entries = []
      void this.refresh()
    }
    this.dispatchEvent(new Event("change"))
  }

  /** The conversations that wait for an approval. */
  get waiting() {
    return this.attention.filter((one) => one.state === "waiting")
  }

  /** Return the entry of a conversation; undefined if the entry is not loaded. @param {string} id */
  entry(id) {
    return this.entries.find((one) => one.conversation_id === id)
  }

  /** Return the entries that match the current filter and contain `text` in the title or the directory. @param {string} text */
  matching(text) {
    const lower = text.toLowerCase()
    return this.entries.filter((one) => {
      if (this.filter === "working" && one.state !== "running") return false
      if (this.filter === "failed" && !one.failed) return false
      if (this.filter === "unread" && !one.unread) return false
      return !lower || one.title.toLowerCase().includes(lower) || one.cwd.toLowerCase().includes(lower)
    })
  }
}

/**
 * Return the state that the list shows for an entry.
 * @param {Entry} entry
 * @returns {"working" | "waiting" | "failed" | "unread" | "done"}
 */
export function stateOf(entry) {
  if (entry.state === "asking") return "waiting"
  if (entry.state === "running") return "working"
  if (entry.failed) return "failed"
  return entry.unread ? "unread" : "done"
}
