/**
 * The transcript of one conversation. If the end is visible, the transcript scrolls with new text; otherwise it keeps the
 * scroll position. All changes before one frame are drawn together.
 */

import { newestBelow, pathTo, treeOf } from "../state/branches.js"
import { fill, h, icon, iconButton } from "../dom.js"
import { itemView } from "./item_view.js"
import { nextFrame } from "./frames.js"

/**
 * @typedef {import("../state/items.js").Item} Item
 * @typedef {import("../state/items.js").Turn} Turn
 * @typedef {import("../state/conversation.js").Conversation} Conversation
 * @typedef {import("./item_view.js").ItemView} ItemView
 * @typedef {{ node: HTMLElement, items: HTMLElement, foot: HTMLElement, views: Map<Item, ItemView> }} TurnView
 */

const AT_END_PIXELS = 60
/** The time in milliseconds after which the transcript scrolls again after the user has opened a part, if the end is visible. */
const HOLD_MS = 1000

export class Transcript {
  /**
   * @param {Conversation} conversation
   * @param {import("./item_view.js").Context} context
   * @param {{ loadOlder: () => Promise<void>, onState: () => void, linkTo: (seq: number) => string, onEnd: () => void }} handlers
   */
  constructor(conversation, context, handlers) {
    this.conversation = conversation
    this.context = context
    this.handlers = handlers
    this.older = h("p", { class: "older", hidden: true }, "Loading earlier messages…")
    this.turns = h("div", { class: "turns" })
    this.empty = h("p", { class: "empty-transcript", hidden: true }, "Nothing has been said yet. Write the first message below.")
    this.scroller = h("div", { class: "scroller", tabindex: 0, role: "log", "aria-live": "off", "aria-label": "Conversation" }, this.older, this.turns, this.empty)
    this.jump = h("button", { type: "button", class: "jump", hidden: true, onclick: () => this.toEnd() }, icon("down"), h("span", null, "Latest"))
    this.node = h("div", { class: "transcript" }, this.scroller, this.jump)
    /** True while the end is visible, so that the transcript scrolls with new text. */
    this.following = true
    /** @private the value of `heights()` when the resize observer ran last */
    this.drawnHeights = ""
    /** @private @type {Map<Turn, TurnView>} */
    this.turnViews = new Map()
    /** @private @type {Set<ItemView>} */
    this.dirty = new Set()
    /** @private @type {Set<Turn>} */
    this.dirtyTurns = new Set()
    /** @private */
    this.scheduled = false
    /** @private @type {Turn | null} the last turn of the branch that the user has chosen; null for the newest branch */
    this.chosenEnd = null
    /** @private */
    this.branchesChanged = false
    /** @private */
    this.loading = false
    /** The turns of the branch that is shown. @type {Turn[]} */
    this.path = []
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true })
    this.scroller.addEventListener("click", (event) => this.hold(event), true)
    // The observer runs after the layout of a frame, so that reading the height causes no further layout.
    this.resizing = new ResizeObserver(() => this.resized())
    this.resizing.observe(this.scroller)
    this.resizing.observe(this.turns)
    conversation.view = this
    this.reset()
  }

  close() {
    this.resizing.disconnect()
    if (this.conversation.view === this) this.conversation.detach()
  }

  // --- changes of the conversation -----------------------------------------------------------

  reset() {
    this.turnViews.clear()
    this.dirty.clear()
    this.turns.replaceChildren()
    for (const turn of this.conversation.turns) this.turns.append(this.turnView(turn).node)
    this.branchesChanged = true
    this.following = true
    this.schedule()
    this.stateChanged()
  }

  /** @param {Turn[]} turns @param {Turn | null} merged */
  prepended(turns, merged) {
    const first = this.firstVisible()
    const top = first?.getBoundingClientRect().top ?? 0
    if (merged) {
      const view = this.turnViews.get(merged)
      if (view) {
        const known = [...view.views.keys()]
        const fresh = merged.items.filter((item) => !known.includes(item))
        view.items.prepend(...fresh.map((item) => this.itemView(view, item).node))
        view.node.id = `seq-${merged.seq}`
        this.dirtyTurns.add(merged)
      }
    }
    this.turns.prepend(...turns.map((turn) => this.turnView(turn).node))
    this.branchesChanged = true
    this.draw()
    if (first) this.scroller.scrollTop += first.getBoundingClientRect().top - top
  }

  /** @param {Turn} turn */
  turnAdded(turn) {
    this.turns.append(this.turnView(turn).node)
    this.branchesChanged = true
    this.schedule()
  }

  /** @param {Turn} turn */
  turnChanged(turn) {
    this.dirtyTurns.add(turn)
    this.schedule()
  }

  /** @param {Turn} turn @param {Item} item */
  itemAdded(turn, item) {
    const view = this.turnViews.get(turn)
    if (!view) return
    view.items.append(this.itemView(view, item).node)
    if (item.kind === "user") this.branchesChanged = true
    this.schedule()
  }

  /** @param {Turn} turn @param {Item} item */
  itemChanged(turn, item) {
    const view = this.turnViews.get(turn)?.views.get(item)
    if (!view) return
    this.dirty.add(view)
    this.schedule()
  }

  /** @param {Turn} turn @param {Item} item */
  itemRemoved(turn, item) {
    const views = this.turnViews.get(turn)?.views
    const view = views?.get(item)
    if (!views || !view) return
    views.delete(item)
    this.dirty.delete(view)
    view.node.remove()
  }

  stateChanged() {
    const { conversation } = this
    this.empty.hidden = !conversation.loaded || conversation.turns.length > 0
    for (const turn of conversation.turns.slice(-2))
      for (const [item, view] of this.turnViews.get(turn)?.views ?? []) if ("state" in item) this.dirty.add(view)
    for (const turn of conversation.turns.slice(-1)) this.dirtyTurns.add(turn)
    this.schedule()
    this.handlers.onState()
  }

  // --- drawing ------------------------------------------------------------------------------

  /** @private */
  schedule() {
    if (this.scheduled) return
    this.scheduled = true
    nextFrame(() => this.draw())
  }

  /** Draw all items and turns that have changed. */
  draw() {
    this.scheduled = false
    for (const view of this.dirty) view.update()
    this.dirty.clear()
    for (const turn of this.dirtyTurns) this.drawFoot(turn)
    this.dirtyTurns.clear()
    if (this.branchesChanged) this.drawBranches()
  }

  /** @private @param {Turn} turn @returns {TurnView} */
  turnView(turn) {
    const items = h("div", { class: "items" })
    const foot = h("footer", { class: "turn-foot" })
    const node = h("article", { class: "turn", id: `seq-${turn.seq}`, "aria-label": "Turn" }, items, foot)
    /** @type {TurnView} */
    const view = { node, items, foot, views: new Map() }
    this.turnViews.set(turn, view)
    items.append(...turn.items.map((item) => this.itemView(view, item).node))
    this.dirtyTurns.add(turn)
    return view
  }

  /** @private @param {TurnView} view @param {Item} item */
  itemView(view, item) {
    const created = itemView(item, this.context)
    view.views.set(item, created)
    return created
  }

  /** @private @param {Turn} turn */
  drawFoot(turn) {
    const view = this.turnViews.get(turn)
    if (!view) return
    view.node.classList.toggle("running", turn.running)
    const counts = turn.tokens
    fill(
      view.foot,
      turn.running && this.conversation.state === "running" && h("span", { class: "working" }, h("span", { class: "pulse", "aria-hidden": "true" }), "Working"),
      counts && h("span", { class: "tokens", title: `${counts.input.toLocaleString()} input tokens (${counts.cached.toLocaleString()} cached), ${counts.output.toLocaleString()} output tokens` }, `${short(counts.input + counts.output)} tokens`),
      h("a", { class: "permalink", href: this.handlers.linkTo(turn.seq), title: `Position ${turn.seq}` }, "Link to this turn"),
    )
  }

  // --- branches -----------------------------------------------------------------------------

  /** @private */
  drawBranches() {
    this.branchesChanged = false
    const { turns, id } = this.conversation
    const { nodes } = treeOf(turns, id)
    const newest = turns.at(-1)
    if (this.chosenEnd && newest && newest !== this.chosenEnd) {
      const node = nodes.get(newest)
      // The chosen branch has grown.
      if (node && pathTo(node).includes(this.chosenEnd)) this.chosenEnd = null
    }
    const end = nodes.get(this.chosenEnd ?? /** @type {Turn} */ (newest))
    this.path = end ? pathTo(end) : []
    const shown = new Set(this.path)
    for (const [turn, view] of this.turnViews) {
      const node = nodes.get(turn)
      view.node.hidden = !shown.has(turn)
      const place = view.node.querySelector(".branch-switch")
      if (!place || !node?.parent || (node.parent.children.length < 2 && !place.childNodes.length)) continue
      const siblings = node.parent.children
      const index = siblings.indexOf(node)
      const choose = (/** @type {number} */ to) => {
        this.chosenEnd = newestBelow(siblings[to]).turn
        this.branchesChanged = true
        this.following = false
        this.draw()
        this.turnViews.get(siblings[to].turn)?.node.scrollIntoView({ block: "nearest" })
        this.handlers.onState()
      }
      fill(
        place,
        siblings.length > 1 && [
          iconButton("back", "Earlier version", () => choose(index - 1), { disabled: index === 0 }),
          h("span", { class: "branch-number", "aria-label": `Version ${index + 1} of ${siblings.length}` }, `${index + 1} / ${siblings.length}`),
          iconButton("chevron", "Later version", () => choose(index + 1), { disabled: index === siblings.length - 1 }),
        ],
      )
    }
  }

  /** Return the id of the last message of the shown branch; undefined if the newest branch is shown. */
  parentOfNext() {
    if (!this.chosenEnd || this.chosenEnd === this.conversation.turns.at(-1)) return undefined
    const last = this.chosenEnd.items.findLast((item) => item.kind === "user")
    return last?.kind === "user" ? last.id : undefined
  }

  /**
   * Return the id of the message before `item`, which becomes the parent of an edited version of `item`.
   * @param {import("../state/items.js").UserItem} item
   * @returns {string} the id of the conversation if there is no earlier message
   */
  parentOf(item) {
    if (item.parent) return item.parent
    const turn = this.conversation.turns.find((one) => one.items.includes(item))
    const { nodes } = treeOf(this.conversation.turns, this.conversation.id)
    for (let node = turn && nodes.get(turn)?.parent; node?.turn; node = node.parent ?? undefined) {
      const last = node.turn.items.findLast((one) => one.kind === "user")
      if (last?.kind === "user") return last.id
    }
    return this.conversation.id
  }

  // --- scrolling ------------------------------------------------------------------------------

  /** @private */
  scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller
    const was = this.following
    // New content has caused the scroll event; `resized` scrolls to the end.
    if (was && this.heights() !== this.drawnHeights) return
    this.following = scrollHeight - scrollTop - clientHeight < AT_END_PIXELS
    this.jump.hidden = this.following
    if (this.following && !was) this.handlers.onEnd()
    if (scrollTop < clientHeight) void this.loadOlder()
  }

  /**
   * If a click opens a part, such as the rest of a patch, keep the scroll position, so that the beginning of the part is in
   * view.
   * @private
   * @param {Event} event
   */
  hold({ target }) {
    if (!(target instanceof Element) || !target.closest(".more, summary")) return
    this.following = false
    setTimeout(() => this.scrolled(), HOLD_MS)
  }

  /** @private */
  async loadOlder() {
    if (this.loading || this.conversation.before === undefined) return
    this.loading = true
    this.older.hidden = false
    try {
      await this.handlers.loadOlder()
    } finally {
      this.loading = false
      this.older.hidden = true
    }
  }

  /** @private */
  heights() {
    return `${this.turns.offsetHeight} ${this.scroller.clientHeight}`
  }

  /** @private */
  resized() {
    this.drawnHeights = this.heights()
    if (this.following) this.pinToEnd()
    const { scrollHeight, clientHeight } = this.scroller
    // The loaded turns do not fill the screen.
    if (clientHeight > 0 && scrollHeight <= clientHeight) void this.loadOlder()
  }

  /** @private */
  pinToEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight
    this.jump.hidden = true
  }

  toEnd() {
    this.following = true
    this.pinToEnd()
    this.handlers.onEnd()
  }

  /** @private */
  firstVisible() {
    const top = this.scroller.getBoundingClientRect().top
    return Array.from(this.turns.children).find((node) => !(/** @type {HTMLElement} */ (node).hidden) && node.getBoundingClientRect().bottom > top)
  }

  /**
   * Load earlier events until the position `seq` is loaded, and scroll to the item at this position.
   * @param {number} seq
   */
  async show(seq) {
    this.following = false
    for (let first = Infinity; this.conversation.before !== undefined; ) {
      const turn = this.conversation.turns[0]
      if (!turn || turn.seq <= seq || turn.seq >= first) break
      first = turn.complete ? turn.seq : first
      await this.handlers.loadOlder()
    }
    const turn = this.conversation.turns.findLast((one) => one.seq <= seq) ?? this.conversation.turns[0]
    if (!turn) return
    if (!this.path.includes(turn)) {
      const { nodes } = treeOf(this.conversation.turns, this.conversation.id)
      const node = nodes.get(turn)
      if (node) this.chosenEnd = newestBelow(node).turn
      this.branchesChanged = true
    }
    this.draw()
    const view = this.turnViews.get(turn)
    const item = turn.items.findLast((one) => one.seq <= seq)
    const node = (item && view?.views.get(item)?.node) ?? view?.node
    if (!node) return
    node.scrollIntoView({ block: "center" })
    node.classList.add("flash")
    setTimeout(() => node.classList.remove("flash"), 2000)
  }

  /** Return the node of an item; undefined if it is not shown. @param {Item} item */
  nodeOf(item) {
    for (const turn of this.path) {
      const view = this.turnViews.get(turn)?.views.get(item)
      if (view) return view.node
    }
    return undefined
  }

  /** Return the element with the buttons of the open approval; null if no approval is open. */
  approvalNode() {
    const id = this.context.approval()?.approval_id
    return id ? /** @type {HTMLElement | null} */ (this.turns.querySelector(`.turn:not([hidden]) [data-approval="${CSS.escape(id)}"]`)) : null
  }
}

/** @param {number} count */
export function short(count) {
  if (count < 1000) return String(count)
  if (count < 1_000_000) return `${(count / 1000).toFixed(count < 10_000 ? 1 : 0)}k`
  return `${(count / 1_000_000).toFixed(1)}M`
}
