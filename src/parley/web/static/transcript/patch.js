/** The view of a patch: the file changes that the agent has made or wants to make. */

import { fill, h } from "../dom.js"
import { diffsOfChanges } from "../text/diff.js"
import { visible } from "../text/visible.js"
import { approvalButtons, settlementText } from "./approval.js"
import { CallView } from "./call_view.js"
import { counts, fileDiffs, shortPath } from "./diff_view.js"

/**
 * @typedef {import("../state/items.js").PatchItem} PatchItem
 * @typedef {import("./item_view.js").Context} Context
 */

const MAX_OPEN_LINES = 60

export class PatchView {
  /**
   * @param {PatchItem} item
   * @param {Context} context
   */
  constructor(item, context) {
    this.item = item
    this.context = context
    this.frame = new CallView("patch", () => this.update())
    this.node = this.frame.node
    this.reason = h("p", { class: "where" })
    this.files = h("div", { class: "files" })
    this.ask = h("div", { class: "ask" })
    this.problem = h("p", { class: "problem", hidden: true })
    this.frame.body.append(this.reason, this.files, this.ask, this.problem)
    /** @private @type {any} */
    this.drawn = null
    /** @private @type {any} the changes from which `diffs` was made */
    this.changes = null
    /** @private @type {import("../text/diff.js").FileDiff[]} */
    this.diffs = []
    this.update()
  }

  update() {
    const { item, frame, context } = this
    if (this.changes !== item.changes) this.diffs = diffsOfChanges((this.changes = item.changes))
    const files = this.diffs
    const failed = item.state === "ended" && !item.success
    frame.setState(failed ? "failed" : item.state)
    const total = { added: 0, deleted: 0 }
    for (const file of files) {
      total.added += file.added
      total.deleted += file.deleted
    }
    const verb = item.state === "asking" ? "Wants to change" : item.state === "denied" ? "Change refused:" : failed ? "Could not change" : "Changed"
    const names = files.map((file) => shortPath(file.path, context.cwd()))
    fill(frame.label, `${verb} `, h("code", { dir: "ltr" }, ...visible(names[0] ?? "nothing")), names.length > 1 && ` and ${names.length - 1} more`)
    fill(frame.status, item.state === "asking" && h("span", null, "Waiting for you"), counts(total))
    frame.setOpen(item.state === "asking" || failed || total.added + total.deleted <= MAX_OPEN_LINES)
    // Also if the frame is closed: the buttons of a settled request must disappear.
    this.drawApproval()
    if (!frame.node.open) return
    if (this.drawn !== item.changes && JSON.stringify(this.drawn) !== JSON.stringify(item.changes)) {
      this.drawn = item.changes
      fill(this.files, fileDiffs(files, { comments: context.comments(), cwd: context.cwd() }))
      fill(this.reason, item.reason && h("q", { class: "reason", dir: "auto" }, ...visible(item.reason)))
    }
    this.problem.hidden = !item.message
    this.problem.textContent = (item.message ?? "").slice(0, 4000)
  }

  /** @private */
  drawApproval() {
    const { item, context } = this
    const approval = context.approval()
    const isAsking = item.state === "asking" && approval?.call_id === item.callId
    const key = isAsking ? approval.approval_id : item.settlement ? "settled" : ""
    if (this.ask.dataset.key === key) return
    this.ask.dataset.key = key
    if (isAsking) fill(this.ask, approvalButtons(approval, context.answer, { canAnswer: context.canAnswer(), subject: this.files }))
    else fill(this.ask, item.settlement && h("p", { class: "settled" }, ...visible(settlementText(item.settlement))))
  }
}
