/**
 * The frame in which a command, patch, tool call or limit is shown. A closed frame consists of one line with the state. The
 * details are created when the frame is opened.
 */

import { h, isTextField } from "../dom.js"

const STATE_NAMES = /** @type {Record<string, string>} */ ({
  asking: "Waiting for you",
  denied: "Denied",
  running: "Running",
  failed: "Failed",
  ended: "Done",
  stopped: "Stopped",
})

export class CallView {
  /**
   * @param {string} kind
   * @param {() => void} onOpen is called when the frame is opened
   */
  constructor(kind, onOpen) {
    this.dot = h("span", { class: "state-dot", role: "img" })
    this.label = h("span", { class: "call-label" })
    this.status = h("span", { class: "call-status" })
    this.body = h("div", { class: "call-body" })
    this.node = h("details", { class: `call ${kind}` }, h("summary", null, this.dot, this.label, this.status), this.body)
    /** @private true after the user has opened or closed the frame */
    this.chosen = false
    this.node.querySelector("summary")?.addEventListener("click", () => (this.chosen = true))
    this.node.addEventListener("toggle", () => this.node.open && onOpen())
  }

  /** Open or close the frame, unless the user has already opened or closed it, or is typing in it. @param {boolean} open */
  setOpen(open) {
    if (!open && isTextField(document.activeElement) && this.body.contains(document.activeElement)) return
    if (!this.chosen && this.node.open !== open) this.node.open = open
  }

  /** @param {string} state */
  setState(state) {
    this.node.dataset.state = state
    this.dot.setAttribute("aria-label", STATE_NAMES[state] ?? state)
    this.dot.title = STATE_NAMES[state] ?? state
  }
}
