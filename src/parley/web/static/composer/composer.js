/**
 * The form in which the user writes messages. While a turn is running, a message joins the turn or waits in the queue.
 */

import { fill, h, icon, iconButton } from "../dom.js"
import { contentNodes } from "../transcript/item_view.js"
import { Attachments } from "./attachments.js"
import { Outbox } from "./outbox.js"
import { TurnSettings } from "./turn_settings.js"

/** @typedef {import("../state/conversation.js").Conversation} Conversation */

export class Composer {
  /**
   * @param {import("../protocol/connection.js").Connection} connection
   * @param {Conversation} conversation
   * @param {import("../state/comments.js").Comments} comments
   * @param {{ parent: () => string | undefined, onSent: () => void }} handlers
   */
  constructor(connection, conversation, comments, handlers) {
    this.connection = connection
    this.conversation = conversation
    this.comments = comments
    this.handlers = handlers
    this.draftKey = `parley.draft:${conversation.id}`
    this.outbox = new Outbox(connection, conversation.id)
    this.outbox.addEventListener("change", () => this.drawOutbox())
    this.queuePlace = h("div", { hidden: true })
    /** @private @type {import("./queue.js").Queue | null} */
    this.queue = null
    this.attachments = new Attachments((text) => this.problem(text))
    this.settings = new TurnSettings(connection, conversation.id)
    this.area = h("textarea", { rows: 1, "aria-label": "Message", placeholder: "Message the agent", dir: "auto" })
    this.area.value = localStorage.getItem(this.draftKey) ?? ""
    this.problemNode = h("p", { class: "problem", role: "alert", hidden: true })
    this.pending = h("div", { class: "pending", hidden: true })
    this.editing = h("div", { class: "composer-note", hidden: true })
    this.commentBar = h("div", { class: "composer-note", hidden: true })
    this.sendButton = h("button", { type: "submit", class: "button primary send", title: "Send (Enter)" }, icon("send"), h("span", null, "Send"))
    this.queueButton = h("button", { type: "button", class: "button queue-button", hidden: true, title: "Send when the turn has ended (Alt+Enter)", onclick: () => void this.send("queue") }, "Queue")
    this.stopButton = h("button", { type: "button", class: "button stop", hidden: true, title: "Interrupt the agent", onclick: () => void this.interrupt() }, icon("stop"), h("span", null, "Stop"))
    this.continueButton = h("button", { type: "button", class: "button", hidden: true, onclick: () => void this.act("conversationContinue") }, "Continue")
    this.node = h(
      "form",
      { class: "composer", "aria-label": "Send a message" },
      this.pending,
      this.queuePlace,
      this.commentBar,
      this.editing,
      this.problemNode,
      h(
        "div",
        { class: "composer-box" },
        this.attachments.node,
        this.area,
        h(
          "div",
          { class: "composer-row" },
          iconButton("clip", "Attach images or files", () => this.attachments.input.click()),
          this.attachments.input,
          this.settings.node,
          h("span", { class: "spring" }),
          this.continueButton,
          this.stopButton,
          this.queueButton,
          this.sendButton,
        ),
      ),
    )
    /** @private @type {string | undefined} the parent of the edited message; undefined if no message is being edited */
    this.parent = undefined
    this.listen()
    this.drawComments()
    requestAnimationFrame(() => this.grow())
  }

  /** @private */
  listen() {
    this.node.addEventListener("submit", (event) => {
      event.preventDefault()
      void this.send("join")
    })
    this.area.addEventListener("input", () => {
      this.grow()
      if (this.area.value) localStorage.setItem(this.draftKey, this.area.value)
      else localStorage.removeItem(this.draftKey)
    })
    this.area.addEventListener("keydown", (event) => {
      const onPhone = matchMedia("(pointer: coarse)").matches
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && (!onPhone || event.ctrlKey || event.metaKey)) {
        event.preventDefault()
        void this.send(event.altKey ? "queue" : "join")
      }
      if (event.key === "Escape") {
        if (this.parent) this.stopEditing()
        else this.area.blur()
      }
    })
    this.area.addEventListener("paste", (event) => {
      if (event.clipboardData?.files.length) {
        event.preventDefault()
        void this.attachments.take(event.clipboardData.files)
      }
    })
    this.comments.addEventListener("change", () => this.drawComments())
  }

  /** Attach dropped files to the message. @param {DragEvent} event */
  drop(event) {
    event.preventDefault()
    void this.attachments.take(event.dataTransfer?.files)
  }

  /** Show the buttons that the state of the conversation allows. */
  update() {
    const { state, turns } = this.conversation
    const isWorking = state !== "idle"
    const end = turns.at(-1)?.items.findLast((item) => item.kind === "error")
    const failed = !isWorking && end !== undefined && turns.at(-1)?.items.at(-1) === end
    this.stopButton.hidden = !isWorking
    this.queueButton.hidden = !isWorking
    this.continueButton.hidden = !failed || !this.connection.may("conversationContinue")
    const label = this.sendButton.querySelector("span")
    if (label) label.textContent = isWorking ? "Send now" : "Send"
    this.sendButton.title = isWorking ? "Give the message to the agent now (Enter)" : "Send (Enter)"
    this.node.hidden = !this.connection.may("conversationSendMessage")
    void this.updateQueue()
  }

  /** Update the view of the queue. The module of the view is imported when the first message is queued. @private */
  async updateQueue() {
    if (!this.queue && this.conversation.queue.messages.length) {
      const { Queue } = await import("./queue.js")
      this.queue ??= new Queue(this.connection, this.conversation, (text) => this.problem(text))
      this.queuePlace.replaceChildren(this.queue.node)
      this.queuePlace.hidden = false
    }
    await this.queue?.update()
  }

  focus() {
    this.area.focus()
  }

  /** Send `text` as the next message. If this fails, put the text back into the input field. @param {string} text */
  sendText(text) {
    this.area.value = text
    void this.send("join")
  }

  /**
   * Put an earlier message into the form for editing. When the edited message is sent, it begins a branch.
   * @param {any[]} content
   * @param {string} parent
   */
  edit(content, parent) {
    this.parent = parent
    this.area.value = content.filter((one) => one.type === "text").map((one) => one.text).join("\n")
    this.attachments.items = content.filter((one) => one.type !== "text")
    void this.attachments.take(null)
    this.editing.hidden = false
    fill(
      this.editing,
      h("span", null, "Editing an earlier message. Sending it begins a new branch; the old one is kept."),
      h("button", { type: "button", class: "button quiet small", onclick: () => this.stopEditing() }, "Cancel"),
    )
    this.grow()
    this.area.focus()
  }

  /** @private */
  stopEditing() {
    this.parent = undefined
    this.editing.hidden = true
    this.area.value = ""
    this.attachments.clear()
    this.grow()
  }

  /** @private @param {"join" | "queue"} delivery */
  async send(delivery) {
    const text = this.area.value.trim()
    const content = [...(text ? [{ type: "text", text }] : []), ...this.attachments.items]
    if (!content.length) return
    const parent = this.parent ?? this.handlers.parent()
    const isWorking = this.conversation.state !== "idle"
    /** @type {any} */
    const options = { ...this.settings.overrides() }
    if (parent) options.parent_message_id = parent
    else if (delivery === "queue" && isWorking) options.delivery = "queue"
    const saved = { text: this.area.value, items: this.attachments.items, parent: this.parent }
    this.stopEditing()
    localStorage.removeItem(this.draftKey)
    this.problem("")
    try {
      const accepted = this.outbox.send(content, options)
      this.handlers.onSent()
      await accepted
      this.settings.sent()
    } catch (error) {
      this.problem(/** @type {Error} */ (error).message)
      if (!this.area.value) {
        if (saved.parent) this.edit(content, saved.parent)
        this.area.value = saved.text
        this.attachments.items = saved.items
        void this.attachments.take(null)
        this.grow()
      }
    }
  }

  /** Interrupt the running turn. */
  async interrupt() {
    await this.act("conversationInterrupt")
  }

  /** @private @param {string} tool */
  async act(tool) {
    this.problem("")
    try {
      await this.connection.call(tool, { conversation_id: this.conversation.id })
    } catch (error) {
      this.problem(/** @type {Error} */ (error).message)
    }
  }

  /** @private */
  drawComments() {
    const count = this.comments.all.length
    this.commentBar.hidden = count === 0
    fill(
      this.commentBar,
      h("span", null, `${count} ${count === 1 ? "comment" : "comments"} on the changes`),
      h("button", { type: "button", class: "button small primary", onclick: () => void this.sendComments() }, "Send comments"),
      h("button", { type: "button", class: "button quiet small", onclick: () => this.comments.clear() }, "Discard"),
    )
  }

  /** @private */
  async sendComments() {
    const text = this.comments.message()
    try {
      await this.outbox.send([{ type: "text", text }])
      this.comments.clear()
      for (const row of document.querySelectorAll("tr.comment[data-comment]")) row.remove()
      this.handlers.onSent()
    } catch (error) {
      this.problem(/** @type {Error} */ (error).message)
    }
  }

  /** @private */
  drawOutbox() {
    const { messages } = this.outbox
    this.pending.hidden = messages.length === 0
    fill(
      this.pending,
      ...messages.map((message) =>
        h(
          "div",
          { class: "user outgoing", "data-message": message.id },
          h("p", { class: "who" }, message.state === "sending" ? "Sending…" : "Waiting for the connection…"),
          ...contentNodes(message.content),
        ),
      ),
    )
  }

  /** @private @param {string} text */
  problem(text) {
    this.problemNode.textContent = text
    this.problemNode.hidden = !text
  }

  /** @private */
  grow() {
    this.area.style.height = "auto"
    this.area.style.height = `${Math.min(this.area.scrollHeight, innerHeight * 0.4)}px`
  }
}
