/**
 * Creates the view for each kind of item. A view has a `node`, and a method `update()`, which draws the current state of
 * the item.
 */

import { fill, h, icon } from "../dom.js"
import { highlightAll } from "../text/code.js"
import { fillLong } from "../text/long_text.js"
import { fillMarkdown, isMarkdown } from "../text/markdown.js"
import { StreamingText } from "../text/streaming.js"
import { visible } from "../text/visible.js"
import { approvalButtons, denialButtons, settlementText } from "./approval.js"
import { CallView } from "./call_view.js"
import { CommandView } from "./command.js"
import { PatchView } from "./patch.js"

/**
 * @typedef {import("../state/items.js").Item} Item
 * @typedef {import("../state/conversation.js").Approval} Approval
 * @typedef {{ node: HTMLElement, update(): void }} ItemView
 * @typedef {{ approval(): Approval | null, answer: import("./approval.js").Answer, canAnswer(): boolean,
 *   comments(): import("../state/comments.js").Comments | null, cwd(): string, me(): string, isShared(): boolean, canSend(): boolean,
 *   edit(item: import("../state/items.js").UserItem): void, fork(item: import("../state/items.js").UserItem): void }} Context
 */

/**
 * Create the view of an item. If the item cannot be drawn, the view shows a note instead, so that all other items are shown.
 * @param {Item} item
 * @param {Context} context
 * @returns {ItemView}
 */
export function itemView(item, context) {
  /** @type {ItemView} */
  let view
  try {
    view = createView(item, context)
  } catch {
    view = brokenView(item, context)
  }
  return {
    get node() {
      return view.node
    },
    update() {
      try {
        view.update()
      } catch {
        const { node } = view
        view = brokenView(item, context)
        node.replaceWith(view.node)
      }
    },
  }
}

/**
 * @param {Item} item
 * @param {Context} context
 * @returns {ItemView}
 */
function createView(item, context) {
  switch (item.kind) {
    case "user":
      return userMessage(item, context)
    case "text":
      return new AgentText(item)
    case "reasoning":
      return new Reasoning(item)
    case "command":
      return new CommandView(item, context)
    case "patch":
      return new PatchView(item, context)
    case "tool":
      return new ToolCall(item)
    case "limit":
      return new Limit(item, context)
    case "plan":
      return fixed(planNode(item))
    case "note":
      return fixed(h("p", { class: "note", dir: "auto" }, ...visible(item.text.slice(0, 4000))))
    case "error":
      return fixed(errorNode(item))
  }
}

/**
 * Create the view of an item that cannot be drawn. While the item waits for an approval, the view can deny it.
 * @param {Item} item
 * @param {Context} context
 * @returns {ItemView}
 */
function brokenView(item, context) {
  const node = h("div", { class: "call error" })
  const update = () => {
    const approval = context.approval()
    const isAsking = "state" in item && item.state === "asking" && approval?.call_id === item.callId
    const key = isAsking ? approval.approval_id : "settled"
    if (node.dataset.key === key) return
    node.dataset.key = key
    fill(node, isAsking ? denialButtons(approval, context.answer, { canAnswer: context.canAnswer() }) : "This part of the conversation cannot be shown.")
  }
  update()
  return { node, update }
}

/** @param {HTMLElement} node */
function fixed(node) {
  return { node, update() {} }
}

/**
 * @param {import("../state/items.js").UserItem} item
 * @param {Context} context
 */
function userMessage(item, context) {
  const body = h("div", { class: "message-body" }, ...contentNodes(item.content))
  const actions =
    context.canSend() &&
    h(
      "div",
      { class: "message-actions" },
      h("button", { type: "button", class: "button quiet small", onclick: () => context.edit(item) }, icon("edit"), "Edit and resend"),
      h("button", { type: "button", class: "button quiet small", onclick: () => context.fork(item) }, "Fork from here"),
    )
  const head = h("p", { class: "who" }, senderName(item, context), h("span", { class: "branch-switch" }))
  return fixed(h("div", { class: "user", "data-message": item.id }, head, body, actions))
}

/**
 * Return the label of the sender of a message. The user who runs the server has the principal `local`; for the reader of
 * a share link, this is another person.
 * @param {import("../state/items.js").UserItem} item
 * @param {Context} context
 */
function senderName(item, context) {
  if (item.principal === context.me()) return "You"
  if (item.principal && item.principal !== "local") return item.principal
  return context.isShared() ? "User" : "You"
}

/**
 * Create the nodes that show the content items of a message.
 * @param {any[]} content
 * @returns {Node[]}
 */
export function contentNodes(content) {
  return content.map((one) => {
    if (one.type === "text") {
      const node = h("p", { class: "plain", dir: "auto" })
      fillLong(node, one.text)
      return node
    }
    if (one.type === "image" && /^data:image\/(png|jpeg|gif|webp);base64,/.test(one.image_url ?? ""))
      return h("img", { class: "attached", src: one.image_url, alt: "Attached image", loading: "lazy" })
    const name = one.filename ?? one.path ?? one.file_url ?? one.image_url ?? one.file_id ?? ""
    return h("p", { class: "attached-file" }, icon("clip"), ...visible(String(name).slice(0, 300)))
  })
}

class AgentText {
  /** @param {import("../state/items.js").TextItem} item */
  constructor(item) {
    this.item = item
    this.node = h("div", { class: "agent" })
    /** @private @type {StreamingText | null} */
    this.streaming = null
    /** @private @type {string | null} */
    this.final = null
    this.update()
  }

  update() {
    if (this.item.open) {
      this.streaming ??= new StreamingText(this.node)
      this.streaming.update(this.item.text)
      return
    }
    if (this.final === this.item.text) return
    this.final = this.item.text
    if (this.streaming && isMarkdown(this.item.text)) this.streaming.finish(this.item.text)
    else fillMarkdown(this.node, this.item.text)
    this.streaming = null
    highlightAll(this.node)
  }
}

class Reasoning {
  /** @param {import("../state/items.js").ReasoningItem} item */
  constructor(item) {
    this.item = item
    this.title = h("span", { class: "reasoning-title" })
    this.body = h("div", { class: "reasoning-body" })
    this.node = h("details", { class: "reasoning" }, h("summary", null, h("span", { class: "reasoning-label" }, "Reasoning"), this.title), this.body)
    this.node.addEventListener("toggle", () => this.update())
    /** @private */
    this.drawn = ""
    this.update()
  }

  update() {
    const { text, open } = this.item
    this.node.classList.toggle("open-text", open)
    const first = text.replace(/[*_#`]/g, "").trim().split("\n", 1)[0].slice(0, 140)
    if (this.title.textContent !== first) this.title.textContent = first
    if (!this.node.open || this.drawn === text) return
    this.drawn = text
    fillMarkdown(this.body, text)
  }
}

class ToolCall {
  /** @param {import("../state/items.js").ToolItem} item */
  constructor(item) {
    this.item = item
    this.frame = new CallView("tool", () => this.update())
    this.node = this.frame.node
    this.update()
  }

  update() {
    const { item, frame } = this
    const failed = item.state === "ended" && (item.result?.Err !== undefined || item.result?.Ok?.isError)
    frame.setState(failed ? "failed" : item.state)
    fill(frame.label, h("code", { dir: "ltr" }, ...visible(`${item.server} · ${item.tool}`)))
    fill(frame.status, failed ? "Failed" : item.state === "running" ? "Running" : "")
    if (!frame.node.open) return
    const input = h("pre", { class: "terminal", tabindex: 0, role: "group", "aria-label": "Arguments" })
    fillLong(input, JSON.stringify(item.arguments ?? null, null, 2), visible)
    const result = item.result && h("pre", { class: "terminal", tabindex: 0, role: "group", "aria-label": "Result" })
    if (result) fillLong(result, item.result.Err ?? resultText(item.result.Ok), visible)
    fill(frame.body, input, result)
  }
}

/** @param {any} result */
function resultText(result) {
  const texts = result?.content?.map((/** @type {any} */ part) => part.text ?? `[${part.type}]`)
  return texts ? texts.join("\n") : JSON.stringify(result, null, 2)
}

class Limit {
  /**
   * @param {import("../state/items.js").LimitItem} item
   * @param {Context} context
   */
  constructor(item, context) {
    this.item = item
    this.context = context
    this.frame = new CallView("limit", () => {})
    this.node = this.frame.node
    this.update()
  }

  update() {
    const { item, frame, context } = this
    frame.setState(item.state)
    fill(frame.label, `Limit reached: ${item.limit} (${item.used.toLocaleString()} of ${item.allowed.toLocaleString()})`)
    frame.setOpen(item.state === "asking")
    const approval = context.approval()
    if (item.state === "asking" && approval?.kind === "limit") {
      if (frame.body.dataset.key !== approval.approval_id) fill(frame.body, approvalButtons(approval, context.answer, { canAnswer: context.canAnswer() }))
      frame.body.dataset.key = approval.approval_id
    } else fill(frame.body, item.settlement && h("p", { class: "settled" }, settlementText(item.settlement)))
  }
}

/** @param {import("../state/items.js").PlanItem} item */
function planNode(item) {
  const names = /** @type {Record<string, string>} */ ({ completed: "done", in_progress: "in progress", pending: "not begun" })
  return h(
    "div",
    { class: "plan", role: "group", "aria-label": "Plan" },
    h("p", { class: "plan-title" }, "Plan"),
    item.explanation && h("p", { dir: "auto" }, ...visible(item.explanation)),
    h(
      "ol",
      null,
      ...item.plan.map(({ step, status }) =>
        h("li", { class: status, dir: "auto" }, h("span", { class: "step-mark", role: "img", "aria-label": names[status] ?? status }), h("span", null, ...visible(step))),
      ),
    ),
  )
}

/** @param {import("../state/items.js").ErrorItem} item */
function errorNode(item) {
  const isInterrupt = item.reason === "interrupted"
  const text = isInterrupt ? `Interrupted${item.principal ? ` by ${item.principal}` : ""}` : item.text.trim()
  return h("div", { class: isInterrupt ? "note interrupted" : "error" }, h("p", { dir: "auto" }, ...visible(text.slice(0, 4000))))
}
