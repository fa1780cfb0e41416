/** The queued messages, which wait for the end of the running turn. The user can edit and remove them. */

import { arrange, fill, h, iconButton } from "../dom.js"

/** @typedef {import("../protocol/connection.js").Connection} Connection */

export class Queue {
  /**
   * @param {Connection} connection
   * @param {import("../state/conversation.js").Conversation} conversation
   * @param {(problem: string) => void} onProblem
   */
  constructor(connection, conversation, onProblem) {
    this.connection = connection
    this.conversation = conversation
    this.onProblem = onProblem
    this.head = h("div", { class: "queue-head" })
    this.rows = h("ol", null)
    this.node = h("section", { class: "queue", hidden: true, "aria-label": "Queued messages" }, this.head, this.rows)
    /** @private */
    this.drawn = ""
  }

  /** Load the queued messages again if the queue has changed. */
  async update() {
    const { messages, paused } = this.conversation.queue
    const key = JSON.stringify([messages, paused])
    if (key === this.drawn) return
    this.drawn = key
    if (!messages.length) {
      this.node.hidden = true
      return
    }
    await this.reload()
  }

  /** Load the queued messages from the server. */
  async reload() {
    try {
      const listed = await this.connection.call("queueList", { conversation_id: this.conversation.id })
      this.draw(listed.messages, listed.paused)
    } catch (error) {
      this.onProblem(/** @type {Error} */ (error).message)
    }
  }

  /**
   * @private
   * @param {any[]} messages
   * @param {boolean} paused
   */
  draw(messages, paused) {
    const may = this.connection.may("queueEdit")
    this.node.hidden = messages.length === 0
    fill(
      this.head,
      h("p", { class: "queue-title" }, paused ? "Queue, paused" : "Queue"),
      paused && may && h("button", { type: "button", class: "button small", onclick: () => void this.run("queueResume", {}) }, "Resume"),
    )
    // These rows keep the text and the focus.
    const edited = [...this.rows.children].filter((row) => row.querySelector("textarea"))
    arrange(this.rows, messages.map((message) => edited.find((row) => row.getAttribute("data-message") === message.message_id) ?? this.row(message, may)))
  }

  /**
   * @private
   * @param {any} message
   * @param {boolean} may
   */
  row(message, may) {
    const text = message.content.filter((/** @type {any} */ one) => one.type === "text").map((/** @type {any} */ one) => one.text).join("\n")
    const others = message.content.filter((/** @type {any} */ one) => one.type !== "text")
    const row = h("li", { "data-message": message.message_id })
    const show = () =>
      fill(
        row,
        h("span", { class: "queued-text", dir: "auto" }, text.slice(0, 500), others.length > 0 && ` (+${others.length} attached)`),
        may && iconButton("edit", "Edit the queued message", edit),
        may && iconButton("close", "Remove the queued message", () => void this.run("queueRemove", { message_id: message.message_id })),
      )
    const edit = () => {
      const area = h("textarea", { rows: 2, "aria-label": "Queued message" })
      area.value = text
      const save = () => {
        // The next drawing replaces the row.
        row.removeAttribute("data-message")
        void this.run("queueEdit", { message_id: message.message_id, content: [...(area.value ? [{ type: "text", text: area.value }] : []), ...others] })
      }
      area.addEventListener("keydown", (event) => {
        if (event.key === "Escape") {
          event.stopPropagation()
          show()
        }
        if (event.key === "Enter" && !event.shiftKey) {
          event.preventDefault()
          save()
        }
      })
      fill(row, area, iconButton("check", "Save the queued message", save), iconButton("close", "Cancel", show))
      area.focus()
    }
    show()
    return row
  }

  /**
   * @private
   * @param {string} tool
   * @param {object} args
   */
  async run(tool, args) {
    try {
      await this.connection.call(tool, { conversation_id: this.conversation.id, ...args })
    } catch (error) {
      this.onProblem(/** @type {Error} */ (error).message)
    }
    await this.reload()
  }
}
