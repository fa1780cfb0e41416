/** The screen of one conversation: its header, transcript, file changes, search and composer. */

import { Composer } from "../composer/composer.js"
import { fill, h, icon, iconButton } from "../dom.js"
import { CallFailed } from "../protocol/mcp.js"
import { Comments } from "../state/comments.js"
import { Conversation } from "../state/conversation.js"
import { visibleText } from "../text/visible.js"
import { Transcript, short } from "../transcript/transcript.js"
import { announce } from "./announce.js"

const PAGE_EVENTS = 1000

/**
 * @typedef {{ answer: import("../transcript/approval.js").Answer, open: (id: string, seq?: number) => void, close: () => void,
 *   me: string, isShared: boolean, rename: (id: string, title: string) => void, remove: (id: string, title: string) => void, changed: () => void }} Handlers
 */

export class Screen {
  /** @type {"transcript" | "changes"} */
  shown = "transcript"
  /** @type {import("../transcript/changes.js").Changes | undefined} created when the user opens the view */
  changes
  /** @type {import("./find.js").FindBar | undefined} */
  findBar

  /**
   * @param {string} id
   * @param {import("../protocol/connection.js").Connection} connection
   * @param {import("../state/list.js").ConversationList} list
   * @param {Handlers} handlers
   */
  constructor(id, connection, list, handlers) {
    this.id = id
    this.connection = connection
    this.list = list
    this.handlers = handlers
    this.conversation = new Conversation(id)
    this.comments = new Comments(id)
    this.cwd = ""
    this.archived = list.filter === "archived"
    /** @private */
    this.lastState = ""
    /** @private the last position that was marked as read */
    this.marked = 0
    /** @private @type {number | null} the position to scroll to when the first events have arrived; null for the end */
    this.wanted = null
    /** @type {import("../transcript/item_view.js").Context} */
    const context = {
      approval: () => this.conversation.approval,
      answer: handlers.answer,
      canAnswer: () => connection.may("approvalAnswer"),
      canSend: () => connection.may("conversationSendMessage"),
      comments: () => (connection.may("conversationSendMessage") ? this.comments : null),
      cwd: () => this.cwd,
      me: () => handlers.me,
      isShared: () => handlers.isShared,
      edit: (item) => this.composer.edit(item.content, this.transcript.parentOf(item)),
      fork: (item) => void this.fork(item.id),
    }
    this.title = h("h1", { class: "screen-title", dir: "auto" })
    this.badge = h("span", { class: "badge" })
    this.where = h("span", { class: "screen-where", dir: "ltr" })
    this.tokens = h("span", { class: "screen-tokens" })
    this.tabs = h(
      "div",
      { class: "tabs", role: "tablist", "aria-label": "View" },
      this.tab("transcript", "Conversation", true),
      this.tab("changes", "Changes", false),
    )
    this.menu = this.buildMenu()
    this.composer = new Composer(connection, this.conversation, this.comments, {
      parent: () => this.transcript?.parentOfNext(),
      onSent: () => {
        this.show("transcript")
        this.transcript.toEnd()
      },
    })
    this.banner = h("div", { class: "banner", hidden: true, role: "status" })
    this.transcript = new Transcript(this.conversation, context, {
      loadOlder: () => this.loadOlder(),
      onState: () => this.update(),
      linkTo: (seq) => `#c=${id}&seq=${seq}`,
      onEnd: () => this.markRead(),
    })
    this.newChanges = async () => {
      const { Changes } = await import("../transcript/changes.js")
      return new Changes(() => this.transcript.path, () => this.conversation.before === undefined, context)
    }
    this.changesPlace = h("div", { hidden: true })
    this.findPlace = h("div")
    this.node = h(
      "section",
      { class: "screen", "aria-label": "Conversation" },
      h(
        "header",
        { class: "screen-head" },
        iconButton("back", "Back to the list", handlers.close, { class: "icon-button back" }),
        h("div", { class: "screen-name" }, this.title, h("div", { class: "screen-facts" }, this.badge, this.where, this.tokens)),
        this.tabs,
        this.menu,
      ),
      this.findPlace,
      this.banner,
      this.transcript.node,
      this.changesPlace,
      this.composer.node,
    )
    this.node.addEventListener("dragover", (event) => {
      event.preventDefault()
      this.node.classList.add("dropping")
    })
    this.node.addEventListener("dragleave", () => this.node.classList.remove("dropping"))
    this.node.addEventListener("drop", (event) => {
      this.node.classList.remove("dropping")
      this.composer.drop(event)
    })
    this.onMessages = (/** @type {Event} */ event) => this.take(/** @type {CustomEvent} */ (event).detail)
    this.onVisible = () => document.visibilityState === "visible" && this.markRead()
    this.onList = () => this.drawHead()
    connection.addEventListener("messages", this.onMessages)
    list.addEventListener("change", this.onList)
    document.addEventListener("visibilitychange", this.onVisible)
    connection.follow(id, () => (this.conversation.loaded ? this.conversation.seq : undefined))
    void this.loadStatus()
    this.drawHead()
  }

  close() {
    this.connection.unfollow(this.id)
    this.connection.removeEventListener("messages", this.onMessages)
    this.list.removeEventListener("change", this.onList)
    document.removeEventListener("visibilitychange", this.onVisible)
    this.transcript.close()
    this.node.remove()
  }

  /** Scroll to the item at the position `seq`. @param {number} seq */
  async showPosition(seq) {
    this.show("transcript")
    if (this.conversation.loaded) await this.transcript.show(seq)
    else this.wanted = seq
  }

  // --- messages -----------------------------------------------------------------------------

  /** @private @param {any[]} messages */
  take(messages) {
    const { conversation } = this
    for (const message of messages) {
      const { method, params } = message
      const id = params?._meta?.conversationId ?? params?.parley_conversation_id ?? params?.conversation_id
      if (id !== this.id) continue
      if (method === "notifications/initial_state") conversation.snapshot(params)
      else if (method === "elicitation/create") conversation.asked(params)
      else if (method === "notifications/stream_disconnected") this.streamEnded(params)
      else if (method === "page/stream_failed") conversation.streamEnded({ reason: params.message })
      else if (params?.msg) {
        conversation.event(params)
        if (params.msg.type === "exec_command_end")
          void import("../state/last_directory.js").then(({ rememberDirectory }) => rememberDirectory(conversation, this.cwd, params.msg.call_id))
      }
    }
    if (this.wanted !== null && conversation.loaded) {
      const seq = this.wanted
      this.wanted = null
      void this.transcript.show(seq)
    }
  }

  /** @private @param {any} params */
  streamEnded(params) {
    const isReplaced = params.code === "taken_over" && !/opened by/.test(params.reason ?? "")
    if (isReplaced) return // another tab has opened the stream again
    if (params.code === "not_open" || params.code === "not_sent") this.connection.follow(this.id, () => this.conversation.seq)
    else this.conversation.streamEnded(params)
  }

  /** @private */
  async loadOlder() {
    const { before } = this.conversation
    if (before === undefined) return
    const page = await this.connection.call("conversationRead", { conversation_id: this.id, before, limit: PAGE_EVENTS })
    if (this.conversation.before === before) this.conversation.prepend(page)
  }

  /** @private */
  async loadStatus() {
    try {
      const status = await this.connection.call("conversationStatus", { conversation_id: this.id })
      this.cwd = status.cwd
      this.model = status.model
      this.status = status
      const open = status.questions[0]
      if (open && !this.conversation.approval) {
        this.conversation.approval = open
        this.transcript.stateChanged()
      }
      this.drawHead()
    } catch (error) {
      if (error instanceof CallFailed) this.conversation.streamEnded({ reason: error.message })
    }
  }

  /** Mark the conversation as read if the page is visible and shows the end of the conversation. */
  markRead() {
    const { seq, state } = this.conversation
    if (!seq || state !== "idle" || seq <= this.marked || document.visibilityState !== "visible" || !this.transcript?.following) return
    this.marked = seq
    void this.connection.call("conversationMarkRead", { conversation_id: this.id, seq }).catch(() => (this.marked = 0))
  }

  // --- drawing ------------------------------------------------------------------------------

  update() {
    if (!this.transcript) return // the transcript is being created
    const { state, disconnected } = this.conversation
    if (state !== this.lastState) {
      const was = this.lastState
      this.lastState = state
      if (was === "running" && state === "idle") void this.loadStatus()
      if (state === "asking") announce("The agent waits for your approval.")
      else if (was && state === "idle") announce("The agent has finished.")
      else if (was === "idle" && state === "running") announce("The agent is working.")
    }
    this.composer.update()
    this.changes?.update()
    this.markRead()
    this.banner.hidden = !disconnected
    if (disconnected)
      fill(
        this.banner,
        h("span", null, disconnected.message),
        disconnected.code !== "deleted" && h("button", { type: "button", class: "button small", onclick: () => this.connection.follow(this.id, () => (this.conversation.loaded ? this.conversation.seq : undefined)) }, "Follow again"),
      )
    this.drawHead()
  }

  /** @private */
  drawHead() {
    const entry = this.list.entry(this.id) ?? this.list.attention.find((one) => one.conversation_id === this.id)
    const title = visibleText(entry?.title ?? this.status?.title ?? "") || "New conversation"
    if (this.title.textContent !== title) this.title.textContent = title
    this.cwd ||= entry?.cwd ?? ""
    const { state } = this.conversation
    const last = this.conversation.turns.at(-1)
    const end = state === "idle" ? last?.items.at(-1) : undefined
    const isInterrupted = end?.kind === "error" && end.reason === "interrupted"
    const failed = end?.kind === "error" && !isInterrupted
    const names = { idle: failed ? "Failed" : isInterrupted ? "Interrupted" : last ? "Done" : "Ready", running: "Working", asking: "Waiting for you" }
    this.badge.textContent = names[state]
    this.badge.dataset.state = { idle: failed ? "failed" : "done", running: "working", asking: "waiting" }[state]
    this.where.textContent = visibleText(this.cwd)
    this.where.title = this.cwd
    const total = this.status?.tokens?.total_tokens
    this.tokens.textContent = [this.model, total ? `${short(total)} tokens` : ""].filter(Boolean).join(" · ")
  }

  /** @private @param {"transcript" | "changes"} name @param {string} label @param {boolean} selected */
  tab(name, label, selected) {
    return h("button", { type: "button", role: "tab", "data-view": name, "aria-selected": String(selected), onclick: () => this.show(name) }, label)
  }

  /** @param {"transcript" | "changes"} name */
  show(name) {
    for (const tab of this.tabs.querySelectorAll("button")) tab.setAttribute("aria-selected", String(tab.dataset.view === name))
    this.shown = name
    if (name === "changes" && !this.changes) void this.openChanges()
    this.transcript.node.hidden = name !== "transcript"
    if (!this.changes) return
    this.changes.node.hidden = name !== "changes"
    this.changes.update()
  }

  /** Import and show the view of the changes. @private */
  async openChanges() {
    const changes = await this.newChanges()
    if (this.changes) return // opened twice
    this.changes = changes
    this.changesPlace.replaceWith(changes.node)
    this.show(this.shown)
  }

  // --- the menu -----------------------------------------------------------------------------

  /** @private */
  buildMenu() {
    const panel = h("div", { class: "panel menu-items" })
    const menu = h("details", { class: "menu" }, h("summary", { class: "icon-button", "aria-label": "More actions", title: "More actions" }, icon("more")), panel)
    const entry = (/** @type {string} */ label, /** @type {string} */ tool, /** @type {() => void} */ run) =>
      (!tool || this.connection.may(tool)) &&
      h("button", { type: "button", onclick: () => ((menu.open = false), run()) }, label)
    menu.addEventListener("toggle", () => {
      if (!menu.open) return
      fill(
        panel,
        entry("Rename…", "conversationRename", () => this.rename()),
        entry("Find in conversation", "", () => void this.find()),
        entry("Copy link", "", () => void navigator.clipboard?.writeText(new URL(`#c=${this.id}`, location.href).href)),
        entry("Fork", "conversationFork", () => void this.fork()),
        entry(this.archived ? "Restore from archive" : "Archive", "conversationArchive", () => void this.archive()),
        entry("Delete…", "conversationDelete", () => this.handlers.remove(this.id, this.title.textContent ?? "")),
      )
    })
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !menu.open) return
      event.stopPropagation()
      menu.open = false
      menu.querySelector("summary")?.focus()
    })
    menu.addEventListener("focusout", (event) => {
      if (event.relatedTarget && !menu.contains(/** @type {Node} */ (event.relatedTarget))) menu.open = false
    })
    return menu
  }

  /** Open the search in the conversation. */
  async find() {
    const { FindBar } = await import("./find.js")
    this.findBar ??= new FindBar(this.transcript, this.conversation, this.connection)
    this.findPlace.replaceChildren(this.findBar.node)
    this.findBar.open()
  }

  rename() {
    this.handlers.rename(this.id, this.title.textContent ?? "")
  }

  /** @param {string} [message] the last message that the fork contains; all messages by default */
  async fork(message) {
    await this.act("conversationFork", message ? { at_message_id: message } : {}, (result) => this.handlers.open(result.conversation_id))
  }

  async archive() {
    await this.act("conversationArchive", { archived: !this.archived }, () => {
      announce(this.archived ? "Restored." : "Archived.")
      this.handlers.close()
    })
  }

  /**
   * @private
   * @param {string} tool
   * @param {object} args
   * @param {(result: any) => void} then
   */
  async act(tool, args, then) {
    try {
      then(await this.connection.call(tool, { conversation_id: this.id, ...args }))
      this.handlers.changed()
    } catch (error) {
      this.composer.problemNode.textContent = /** @type {Error} */ (error).message
      this.composer.problemNode.hidden = false
    }
  }
}
