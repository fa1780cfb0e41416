/** Finds text in the open conversation. The page searches the loaded turns, and the server searches earlier messages. */

import { h, icon, iconButton } from "../dom.js"
import { commandText } from "../text/visible.js"

/** @typedef {import("../state/items.js").Item} Item */

export class FindBar {
  /**
   * @param {import("../transcript/transcript.js").Transcript} transcript
   * @param {import("../state/conversation.js").Conversation} conversation
   * @param {import("../protocol/connection.js").Connection} connection
   */
  constructor(transcript, conversation, connection) {
    this.transcript = transcript
    this.conversation = conversation
    this.connection = connection
    this.input = h("input", { type: "search", "aria-label": "Find in conversation", placeholder: "Find in conversation", autocomplete: "off" })
    this.count = h("span", { class: "find-count", role: "status" })
    this.node = h(
      "form",
      { class: "find", hidden: true, role: "search", "aria-label": "Find in conversation" },
      icon("search"),
      this.input,
      this.count,
      iconButton("up", "Previous match", () => void this.go(-1)),
      iconButton("down", "Next match", () => void this.go(1)),
      iconButton("close", "Close the search", () => this.close()),
    )
    this.node.addEventListener("submit", (event) => {
      event.preventDefault()
      void this.go(-1)
    })
    this.input.addEventListener("input", () => void this.search())
    this.node.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation()
        this.close()
      }
    })
    /** @private @type {Item[]} */
    this.matches = []
    /** @private @type {number[]} the positions of the matching messages that are not loaded */
    this.earlier = []
    /** @private @type {Item | null} */
    this.at = null
  }

  open() {
    this.node.hidden = false
    this.input.focus()
    this.input.select()
  }

  close() {
    this.node.hidden = true
    this.mark("")
    this.transcript.scroller.focus()
  }

  /** @private */
  async search() {
    const text = this.input.value.trim().toLowerCase()
    this.at = null
    this.collect(text)
    this.earlier = []
    this.draw()
    this.mark(text)
    if (text.length < 2 || this.conversation.before === undefined) return
    const result = await this.connection
      .call("conversationSearch", { conversation_id: this.conversation.id, text: text.slice(0, 200), limit: 100 })
      .catch(() => null)
    if (!result || text !== this.input.value.trim().toLowerCase()) return
    const first = this.conversation.turns[0]?.items[0]?.seq ?? 0
    this.earlier = result.messages.map((/** @type {any} */ one) => one.seq).filter((/** @type {number} */ seq) => seq < first)
    this.draw()
  }

  /** @private @param {string} text */
  collect(text) {
    this.matches = text ? this.transcript.path.flatMap((turn) => turn.items).filter((item) => textOf(item).toLowerCase().includes(text)) : []
  }

  /** Go to the next match (`step` 1) or to the previous match (`step` -1). @param {1 | -1} step */
  async go(step) {
    const text = this.input.value.trim().toLowerCase()
    if (!text) return
    this.collect(text)
    const index = this.at ? this.matches.indexOf(this.at) + step : step < 0 ? this.matches.length - 1 : 0
    if (index < 0 && this.earlier.length) {
      const seq = /** @type {number} */ (this.earlier.shift())
      await this.transcript.show(seq)
      this.collect(text)
      this.at = this.matches.findLast((item) => item.seq <= seq) ?? null
      this.earlier = this.earlier.filter((one) => one < (this.conversation.turns[0]?.seq ?? 0))
    } else this.at = this.matches[(index + this.matches.length) % this.matches.length] ?? null
    const node = this.at && this.transcript.nodeOf(this.at)
    if (node) {
      if (node instanceof HTMLDetailsElement) node.open = true
      for (const inner of node.querySelectorAll("details")) inner.open = true
      this.transcript.following = false
      node.scrollIntoView({ block: "center" })
    }
    this.draw()
    this.mark(text)
  }

  /** @private */
  draw() {
    const total = this.matches.length + this.earlier.length
    const index = this.at ? this.matches.indexOf(this.at) + 1 + this.earlier.length : 0
    this.count.textContent = this.input.value.trim() ? (total ? `${index || "–"} of ${total}` : "No match") : ""
  }

  /** Mark all occurrences of `text` with the CSS Custom Highlight API, which does not change the DOM. @private @param {string} text */
  mark(text) {
    if (!("highlights" in CSS)) return
    CSS.highlights.delete("find")
    if (!text) return
    const ranges = []
    for (const item of this.matches.slice(-200)) {
      const node = this.transcript.nodeOf(item)
      if (!node) continue
      const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT)
      for (let at; (at = walker.nextNode()); ) {
        const lower = (at.nodeValue ?? "").toLowerCase()
        for (let start = lower.indexOf(text); start >= 0 && ranges.length < 2000; start = lower.indexOf(text, start + text.length)) {
          const range = new Range()
          range.setStart(at, start)
          range.setEnd(at, Math.min(start + text.length, at.nodeValue?.length ?? 0))
          ranges.push(range)
        }
      }
    }
    if (ranges.length) CSS.highlights.set("find", new Highlight(...ranges))
  }
}

/** @param {Item} item @returns {string} */
function textOf(item) {
  switch (item.kind) {
    case "user":
      return item.content.map((one) => one.text ?? one.filename ?? "").join("\n")
    case "command":
      return `${commandText(item.command).text}\n${item.output.pieces.map((piece) => piece.text).join("")}`
    case "patch":
      return JSON.stringify(item.changes)
    case "plan":
      return item.plan.map((step) => step.step).join("\n")
    case "tool":
      return `${item.tool} ${JSON.stringify(item.arguments)}`
    case "limit":
      return item.limit
    default:
      return item.text
  }
}
