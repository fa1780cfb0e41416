/**
 * The buttons that answer an approval request, and the note for an action that is done outside the sandbox. The transcript
 * and the list of conversations use this module.
 */

import { h } from "../dom.js"

/**
 * @typedef {import("../state/conversation.js").Approval} Approval
 * @typedef {(approval: Approval, decision: string, reason?: string) => Promise<void>} Answer
 */

/** The buttons that show a hidden part of an action, and files of a patch that have not been opened. */
const HIDDEN_PARTS = ".more, .file-body:empty"

const REST_MS = 350
/**
 * The time in milliseconds during which the buttons of a new request are disabled, so that a tap on an element that the
 * request has displaced does not answer the request. The time begins again when the window or the tab comes to the front,
 * when the buttons may have moved, and when the last hidden part has been shown.
 */

/**
 * @param {Approval} approval
 * @param {Answer} answer
 * @param {{ canAnswer: boolean, subject?: Element }} options `subject` is the element that shows the action. While a part of
 *   it is hidden, the action cannot be approved.
 */
export function approvalButtons(approval, answer, { canAnswer, subject }) {
  const outside = approval.leaves_sandbox && h("p", { class: "hint outside" }, approval.kind === "patch" ? "Applied outside the sandbox" : "Runs outside the sandbox")
  if (!canAnswer) return h("div", null, outside, h("p", { class: "hint" }, "Waiting for a person who may approve this."))
  const problem = h("p", { class: "problem", role: "alert", hidden: true })
  const reason = h("input", { type: "text", maxlength: 2000, "aria-label": "Reason for the agent", placeholder: "Reason for the agent" })
  /** @param {string} decision @param {string} [text] */
  const decide = async (decision, text) => {
    isAnswering = true
    draw()
    problem.hidden = true
    try {
      await answer(approval, decision, text)
    } catch (error) {
      problem.textContent = /** @type {Error} */ (error).message
      problem.hidden = false
      isAnswering = false
      draw()
    }
  }
  const session =
    approval.kind === "exec" &&
    h("button", { type: "button", class: "button", "data-key": "s", onclick: () => decide("approved_for_session") }, "Approve for session")
  const withReason = h(
    "form",
    {
      class: "with-reason",
      hidden: true,
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault()
        void decide("denied", reason.value.trim() || undefined)
      },
    },
    reason,
    h("button", { type: "submit", class: "button danger" }, "Deny"),
  )
  const open = h(
    "button",
    {
      type: "button",
      class: "button quiet",
      "data-key": "r",
      "aria-expanded": "false",
      onclick: () => {
        withReason.hidden = !withReason.hidden
        open.setAttribute("aria-expanded", String(!withReason.hidden))
        if (!withReason.hidden) reason.focus()
      },
    },
    "Deny with a reason…",
  )
  const [yes, no] = approval.kind === "limit" ? ["Go on", "Stop here"] : ["Approve", "Deny"]
  const row = h(
    "div",
    { class: "row" },
    h("button", { type: "button", class: "button primary", "data-key": "a", onclick: () => decide("approved") }, yes),
    session,
    h("button", { type: "button", class: "button", "data-key": "d", onclick: () => decide("denied") }, no),
    approval.kind !== "limit" && open,
  )
  let isAnswering = false
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let rest
  const hint = h("p", { class: "hint", hidden: true }, "Show all of it before you approve it.")
  const draw = () => {
    const isHidden = !!subject?.querySelector(HIDDEN_PARTS)
    const wasHidden = !hint.hidden
    hint.hidden = !isHidden
    if (wasHidden && !isHidden) begin()
    for (const button of row.querySelectorAll("button"))
      button.disabled = isAnswering || rest !== undefined || (isHidden && /^[as]$/.test(button.dataset.key ?? ""))
  }
  if (subject) new MutationObserver(draw).observe(subject, { childList: true, subtree: true })
  const begin = () => {
    clearTimeout(rest)
    rest = setTimeout(() => {
      rest = undefined
      draw()
    }, REST_MS)
    draw()
  }
  begin()
  return h("div", { class: "approval-buttons", "data-approval": approval.approval_id, onrest: begin }, outside, hint, row, withReason, problem)
}

/** Disable the buttons of all requests in an element for a moment. @param {ParentNode} element */
export function restIn(element) {
  for (const buttons of element.querySelectorAll(".approval-buttons")) buttons.dispatchEvent(new Event("rest"))
}
// A click that brings the page to the front must not answer a request.
window.addEventListener("focus", () => restIn(document))
document.addEventListener("visibilitychange", () => restIn(document))

/**
 * Create what replaces a request that cannot be drawn: a note, and the buttons that deny the request.
 * @param {Approval} approval
 * @param {Answer} answer
 * @param {{ canAnswer: boolean }} options
 */
export function denialButtons(approval, answer, options) {
  const buttons = approvalButtons(approval, answer, options)
  for (const button of buttons.querySelectorAll("[data-key=a], [data-key=s]")) button.remove()
  return [h("p", { class: "problem" }, "This request cannot be shown. You can only deny it."), buttons]
}

/** Describe how an approval was settled. @param {import("../state/items.js").Settlement} settlement */
export function settlementText({ decision, principal, by, reason }) {
  const who = principal ? ` by ${principal}` : by === "timeout" ? " because no client answered in time" : ""
  const verb = {
    approved: "Approved",
    approved_for_session: "Approved for this session",
    denied: "Denied",
    abort: "Denied and stopped",
    timed_out: "Not answered in time",
    dropped: "Dropped",
  }[decision] ?? decision
  return `${verb}${who}${reason ? `: ${reason}` : ""}`
}
