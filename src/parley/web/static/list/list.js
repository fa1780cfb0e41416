/**
 * The view of the list of conversations. The conversations that wait for an approval come first. The other conversations
 * follow, grouped by directory.
 */

import { arrange, fill, h, iconButton, isTextField } from "../dom.js"
import { stateOf } from "../state/list.js"
import { visibleText } from "../text/visible.js"

/**
 * @typedef {import("../state/list.js").ConversationList} ConversationList
 * @typedef {import("../state/list.js").Entry} Entry
 */

const FILTERS = /** @type {[import("../state/list.js").Filter, string][]} */ ([
  ["all", "All"],
  ["working", "Working"],
  ["unread", "Unread"],
  ["failed", "Failed"],
  ["archived", "Archived"],
])
const STATE_LABELS = { working: "Working", waiting: "Waiting for you", failed: "Failed", unread: "Done, not read", done: "Done" }

export class ListView {
  /**
   * @param {ConversationList} list
   * @param {import("../protocol/connection.js").Connection} connection
   * @param {{ open: (id: string, seq?: number) => void, create: () => void, answer: import("../transcript/approval.js").Answer }} handlers
   */
  constructor(list, connection, handlers) {
    this.list = list
    this.connection = connection
    this.handlers = handlers
    /** The id of the open conversation. @type {string | null} */
    this.current = null
    this.search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search conversations and messages", autocomplete: "off" })
    this.filters = h(
      "div",
      { class: "filters", role: "group", "aria-label": "Filter" },
      ...FILTERS.map(([filter, label]) =>
        h("button", { type: "button", class: "chip", "data-filter": filter, "aria-pressed": String(filter === "all"), onclick: () => this.choose(filter) }, label),
      ),
    )
    this.createButton = iconButton("plus", "New conversation", handlers.create, { class: "icon-button new" })
    this.waiting = h("section", { class: "waiting", "aria-label": "Waiting for you", hidden: true })
    this.waitingTitle = h("h2", null, "Waiting for you")
    this.groups = h("div", { class: "groups" })
    this.found = h("section", { class: "found", "aria-label": "Messages found", hidden: true })
    this.node = h(
      "nav",
      { class: "list", "aria-label": "Conversations" },
      h("div", { class: "list-tools" }, this.search, this.createButton),
      this.filters,
      h("div", { class: "list-scroll", tabindex: -1 }, this.waiting, this.groups, this.found),
    )
    this.search.addEventListener("input", () => {
      this.draw()
      clearTimeout(this.searchTimer)
      this.searchTimer = setTimeout(() => void this.searchMessages(), 250)
    })
    this.node.addEventListener("keydown", (event) => this.key(event))
    list.addEventListener("change", () => this.draw())
    /** @private @type {ReturnType<typeof setTimeout> | undefined} */
    this.searchTimer = undefined
    /** @private @type {typeof import("./waiting_card.js") | null} imported when the first conversation waits for an approval */
    this.cardModule = null
    /** @private @type {Map<string, { node: HTMLElement, key: string }>} */
    this.rows = new Map()
    /** @private @type {Map<string, { node: HTMLElement, key: string }>} */
    this.cards = new Map()
    // The list shows how long ago each conversation was active.
    setInterval(() => this.draw(), 60_000)
    this.draw()
  }

  /** @param {string | null} id */
  setCurrent(id) {
    this.current = id
    this.draw()
  }

  /** Open the next (`step` 1) or the previous (`step` -1) conversation in the list. @param {1 | -1} step */
  move(step) {
    const links = /** @type {HTMLAnchorElement[]} */ ([...this.node.querySelectorAll("a.entry")])
    const index = links.findIndex((link) => link.dataset.id === this.current)
    const next = links[index < 0 ? 0 : index + step]
    if (!next) return
    this.handlers.open(/** @type {string} */ (next.dataset.id))
    next.scrollIntoView({ block: "nearest" })
  }

  /** @private @param {import("../state/list.js").Filter} filter */
  choose(filter) {
    for (const chip of this.filters.querySelectorAll("button")) chip.setAttribute("aria-pressed", String(chip.dataset.filter === filter))
    this.list.setFilter(filter)
  }

  draw() {
    this.createButton.hidden = !this.connection.may("conversationCreate")
    this.drawWaiting()
    const text = this.search.value.trim()
    this.list.setNeedsAll(text !== "" || !["all", "archived"].includes(this.list.filter))
    const entries = this.list.matching(text)
    /** @type {Map<string, Entry[]>} */
    const byDirectory = new Map()
    for (const entry of entries) {
      if (entry.state === "asking" && this.isWaiting(entry)) continue
      const members = byDirectory.get(entry.cwd)
      if (members) members.push(entry)
      else byDirectory.set(entry.cwd, [entry])
    }
    const groups = [...byDirectory].map(([cwd, members]) => this.group(cwd, members))
    const isEmpty = this.list.loaded && entries.length === 0
    const isNarrowed = text !== "" || this.list.filter !== "all"
    const hint = !isNarrowed ? "No conversations yet." : this.list.isComplete ? "No conversation matches." : "Searching…"
    const more =
      this.list.nextCursor && h("button", { type: "button", class: "more", onclick: () => void this.list.loadMore() }, "Load more conversations")
    const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.id : undefined
    fill(this.groups, ...groups, isEmpty && h("p", { class: "hint" }, hint), more)
    if (focused && !this.node.contains(document.activeElement)) this.rows.get(focused)?.node.focus()
    if (!text) this.found.hidden = true
  }

  /** Return whether the section `Waiting for you` shows an entry. @private @param {Entry} entry */
  isWaiting(entry) {
    return this.list.waiting.some((one) => one.conversation_id === entry.conversation_id)
  }

  /** @private */
  drawWaiting() {
    const { waiting } = this.list
    if (waiting.length && !this.cardModule) {
      void import("./waiting_card.js").then((module) => ((this.cardModule = module), this.draw()))
      return
    }
    const { waitingCard, restIn } = /** @type {typeof import("./waiting_card.js")} */ (this.cardModule ?? {})
    const ids = new Set()
    const nodes = waiting.map((one) => {
      const id = one.approval?.approval_id ?? one.conversation_id
      ids.add(id)
      const key = `${one.title}:${one.conversation_id === this.current}`
      let card = this.cards.get(id)
      if (!card || (card.key !== key && !(isTextField(document.activeElement) && card.node.contains(document.activeElement)))) {
        card = { key, node: waitingCard(one, this.handlers, { canAnswer: this.connection.may("approvalAnswer"), isCurrent: one.conversation_id === this.current }) }
        this.cards.set(id, card)
      }
      return card.node
    })
    for (const id of this.cards.keys()) if (!ids.has(id)) this.cards.delete(id)
    this.waiting.hidden = nodes.length === 0
    // The second click of a double click, or the second press of a key, must not answer another request.
    if (arrange(this.waiting, [this.waitingTitle, ...nodes])) restIn?.(document)
  }

  /** @private @param {string} cwd @param {Entry[]} entries */
  group(cwd, entries) {
    const parts = cwd.split("/").filter(Boolean)
    const name = parts.at(-1) ?? cwd
    const parent = parts.length > 1 ? `${cwd.startsWith("/") ? "/" : ""}${parts.slice(0, -1).join("/")}` : ""
    return h(
      "section",
      { class: "group", "aria-label": cwd },
      h("h2", { title: cwd, dir: "ltr" }, h("span", { class: "name" }, visibleText(name)), parent && h("span", { class: "parent" }, visibleText(parent))),
      h("ul", null, ...entries.map((entry) => h("li", null, this.row(entry)))),
    )
  }

  /** @private @param {Entry} entry */
  row(entry) {
    const state = stateOf(entry)
    const title = visibleText(entry.title) || "New conversation"
    const isCurrent = entry.conversation_id === this.current
    const time = ago(entry.updated_at)
    const isEmpty = !entry.title
    const key = `${state}:${title}:${isEmpty}:${isCurrent}:${time}`
    const known = this.rows.get(entry.conversation_id)
    if (known?.key === key) return known.node
    const node = h(
      "a",
      { class: isEmpty ? "entry empty" : "entry", href: `#c=${entry.conversation_id}`, "data-id": entry.conversation_id, "data-state": state, "aria-current": isCurrent ? "page" : undefined },
      h("span", { class: "state-dot", role: "img", "aria-label": STATE_LABELS[state], title: STATE_LABELS[state] }),
      h("span", { class: "title", dir: "auto" }, title),
      h("time", { datetime: entry.updated_at }, time),
    )
    this.rows.set(entry.conversation_id, { node, key })
    return node
  }

  /** @private */
  async searchMessages() {
    const text = this.search.value.trim().slice(0, 200)
    if (text.length < 2) {
      this.found.hidden = true
      return
    }
    const result = await this.connection.call("conversationSearch", { text, limit: 30 }).catch(() => null)
    if (!result || text !== this.search.value.trim().slice(0, 200)) return
    this.found.hidden = result.messages.length === 0
    fill(
      this.found,
      h("h2", null, "Messages"),
      h(
        "ul",
        null,
        ...result.messages.map((/** @type {any} */ one) => {
          const points = Array.from(one.snippet)
          return h(
            "li",
            null,
            h(
              "a",
              { class: "hit", href: `#c=${one.conversation_id}&seq=${one.seq}` },
              h("span", { class: "title", dir: "auto" }, visibleText(one.title)),
              h("span", { class: "snippet", dir: "auto" }, points.slice(0, one.start).join(""), h("mark", null, points.slice(one.start, one.end).join("")), points.slice(one.end).join("")),
            ),
          )
        }),
      ),
    )
  }

  /** @private @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "Escape" && event.target === this.search && this.search.value) {
      event.stopPropagation()
      this.search.value = ""
      this.draw()
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return
    const stops = /** @type {HTMLElement[]} */ ([this.search, ...this.node.querySelectorAll("a.entry, a.hit, .waiting-card a")])
    const index = stops.indexOf(/** @type {HTMLElement} */ (event.target))
    if (index < 0) return
    event.preventDefault()
    stops[index + (event.key === "ArrowDown" ? 1 : -1)]?.focus()
  }
}

/** Return the time since `time`, such as `5m`. If `time` was more than 30 days ago, return its date. @param {string} time */
function ago(time) {
  const seconds = (Date.now() - Date.parse(time)) / 1000
  if (!(seconds >= 60)) return "now"
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h`
  if (seconds < 30 * 86400) return `${Math.floor(seconds / 86400)}d`
  return new Date(time).toLocaleDateString(undefined, { month: "short", day: "numeric" })
}
