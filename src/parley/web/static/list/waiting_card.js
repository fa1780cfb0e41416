/** The card of a conversation that waits for an approval. The card shows the whole command or patch, and the buttons that answer. */

import { h } from "../dom.js"
import { approvalButtons, denialButtons } from "../transcript/approval.js"
import { fileDiffs } from "../transcript/diff_view.js"
import { diffsOfChanges } from "../text/diff.js"
import { commandText, visible, visibleText } from "../text/visible.js"

/**
 * @param {import("../state/list.js").Attention} attention
 * @param {{ answer: import("../transcript/approval.js").Answer }} handlers
 * @param {{ canAnswer: boolean, isCurrent: boolean }} options
 */
export function waitingCard(attention, handlers, { canAnswer, isCurrent }) {
  const { approval } = attention
  /** @param {import("../state/conversation.js").Approval} open */
  const request = (open) => {
    try {
      const shown = subject(open, attention.cwd)
      return [shown, approvalButtons(open, handlers.answer, { canAnswer, subject: shown })]
    } catch {
      return denialButtons(open, handlers.answer, { canAnswer }) // an error would hide all other conversations
    }
  }
  return h(
    "article",
    { class: isCurrent ? "waiting-card current" : "waiting-card", "aria-label": visibleText(attention.title) || "New conversation" },
    h(
      "a",
      { href: `#c=${attention.conversation_id}`, class: "waiting-title", "data-id": attention.conversation_id, "aria-current": isCurrent ? "page" : undefined },
      h("span", { class: "state-dot waiting", role: "img", "aria-label": "Waiting for you" }),
      h("span", { class: "title", dir: "auto" }, visibleText(attention.title) || "New conversation"),
    ),
    approval && !isCurrent && request(approval),
    isCurrent && h("p", { class: "hint" }, "Shown in the conversation."),
  )
}

/**
 * Create the node that shows the action to approve.
 * @param {import("../state/conversation.js").Approval} approval
 * @param {string} cwd
 */
function subject(approval, cwd) {
  if (approval.kind === "exec" && approval.command) {
    const { text } = commandText(approval.command)
    return h(
      "div",
      { class: "subject" },
      h("pre", { class: "command-text", dir: "ltr", tabindex: 0, role: "group", "aria-label": "Command" }, ...visible(text)),
      approval.cwd && approval.cwd !== cwd && h("p", { class: "hint" }, "in ", h("code", { dir: "ltr" }, ...visible(approval.cwd))),
    )
  }
  if (approval.kind === "patch" && approval.changes) {
    const files = fileDiffs(diffsOfChanges(approval.changes), { comments: null, cwd })
    return h("div", { class: "subject files", tabindex: 0, role: "group", "aria-label": "Changes" }, files)
  }
  return h("p", { class: "subject" }, ...visible(approval.message))
}
