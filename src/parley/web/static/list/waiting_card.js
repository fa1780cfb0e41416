/** The card of a conversation that waits for an approval. The card shows the whole command or patch, and the buttons that answer. */

import { h } from "../dom.js"
import { approvalButtons, denialButtons } from "../transcript/approval.js"
import { fileDiffs } from "../transcript/diff_view.js"
import { diffsOfChanges } from "../text/diff.js"
import { fillLong } from "../text/long_text.js"
import { commandText, visible, visibleCommand, visibleText } from "../text/visible.js"

export { restIn } from "../transcript/approval.js"

/** The number of characters of a directory that are shown at first. */
const FIRST_OF_DIRECTORY = 300

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
    const command = h("pre", { class: "command-text", dir: "ltr", tabindex: 0, role: "group", "aria-label": "Command" })
    fillLong(command, text, visibleCommand)
    const place = h("code", { dir: "ltr" })
    fillLong(place, approval.cwd ?? "", visible, FIRST_OF_DIRECTORY)
    return h(
      "div",
      { class: "subject" },
      clipped(command, text.split("\n").length),
      approval.cwd && approval.cwd !== cwd && h("p", { class: "hint" }, "in ", place),
    )
  }
  if (approval.kind === "patch" && approval.changes) {
    const files = diffsOfChanges(approval.changes)
    const nodes = fileDiffs(files, { comments: null, cwd })
    const lines = files.flatMap((file) => file.hunks).reduce((sum, hunk) => sum + hunk.lines.length, 0)
    return h("div", { class: "subject" }, clipped(h("div", { class: "files", tabindex: 0, role: "group", "aria-label": "Changes" }, ...nodes), lines))
  }
  return h("p", { class: "subject" }, ...visible(approval.message))
}

/**
 * Show the beginning of an element. If the element is higher than the style allows, show a button that shows all of it.
 * @param {HTMLElement} element
 * @param {number} lines
 */
function clipped(element, lines) {
  const clip = h("div", { class: "clip" }, element)
  const more = h("button", { type: "button", class: "more", onclick: () => show() }, lines > 1 ? `Show all ${lines.toLocaleString()} lines` : "Show the whole line")
  const node = h("div", null, clip, more)
  const observer = new ResizeObserver(() => {
    const isWhole = clip.scrollHeight <= clip.clientHeight + 1
    if (isWhole) more.remove()
    else node.append(more)
  })
  const show = () => {
    observer.disconnect()
    clip.classList.remove("clip")
    more.remove()
  }
  observer.observe(clip)
  observer.observe(element)
  return node
}
