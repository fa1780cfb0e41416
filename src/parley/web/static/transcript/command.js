/** The view of a command, with its output and exit code. */

import { fill, h } from "../dom.js"
import { fillLong } from "../text/long_text.js"
import { TerminalText } from "../text/terminal.js"
import { commandText, visible, visibleCommand } from "../text/visible.js"
import { approvalButtons, settlementText } from "./approval.js"
import { CallView } from "./call_view.js"
import { shortPath } from "./diff_view.js"

/**
 * @typedef {import("../state/items.js").CommandItem} CommandItem
 * @typedef {import("./item_view.js").Context} Context
 */

/**
 * The number of characters of a directory or of a reason that are shown at first. The agent chooses these texts, and a long
 * text between the command and the buttons would move the command out of view.
 */
const FIRST_OF_DETAILS = 300

export class CommandView {
  /**
   * @param {CommandItem} item
   * @param {Context} context
   */
  constructor(item, context) {
    this.item = item
    this.context = context
    this.frame = new CallView("command", () => this.update())
    this.node = this.frame.node
    this.full = h("pre", { class: "command-text", dir: "ltr", tabindex: 0, role: "group", "aria-label": "Command" })
    this.where = h("p", { class: "where" })
    this.action = h("div", { class: "subject" }, this.full, this.where)
    this.ask = h("div", { class: "ask" })
    this.screen = h("pre", { class: "terminal", dir: "ltr", tabindex: 0, role: "group", "aria-label": "Output" })
    this.frame.body.append(this.action, this.ask, this.screen)
    /** @private */
    this.written = 0
    /** @private @type {TerminalText | null} */
    this.terminal = null
    /** @private */
    this.described = ""
    this.update()
  }

  update() {
    const { item, frame } = this
    const failed = item.state === "ended" && item.exitCode !== 0
    frame.setState(failed ? "failed" : item.state)
    this.describe()
    frame.setOpen(item.state === "asking" || item.state === "running" || failed)
    fill(frame.status, ...this.statusText())
    // Also if the frame is closed: the buttons of a settled request must disappear.
    this.drawApproval()
    if (frame.node.open) this.drawOutput()
  }

  /** @private */
  describe() {
    const { command, cwd, reason } = this.item
    const key = JSON.stringify([command, cwd, reason])
    if (key === this.described) return
    this.described = key
    const { shell, text } = commandText(command)
    const first = text.trim().split("\n", 1)[0].slice(0, 300)
    fill(this.frame.label, h("code", { dir: "ltr" }, ...visible(first), first.length < text.trim().length && " …"))
    fillLong(this.full, text, visibleCommand)
    const place = h("code", { dir: "ltr", title: cwd })
    fillLong(place, shortPath(cwd, this.context.cwd()) || cwd, visible, FIRST_OF_DETAILS)
    fill(this.where, shell && h("code", null, shell), " in ", place)
    if (!reason) return
    const words = h("q", { class: "reason", dir: "auto" })
    fillLong(words, reason, visible, FIRST_OF_DETAILS)
    this.where.append(words)
  }

  /** @private */
  statusText() {
    const { item } = this
    const time = item.seconds !== undefined && item.seconds >= 0.1 ? duration(item.seconds) : ""
    if (item.state === "ended")
      return [h("span", { class: item.exitCode === 0 ? "exit" : "exit failed" }, `exit ${item.exitCode}`), time && h("span", { class: "time" }, time)]
    if (item.state === "asking") return ["Waiting for you"]
    if (item.state === "denied") return [...visible(item.settlement ? settlementText(item.settlement).slice(0, 80) : "Denied")]
    if (item.state === "stopped") return ["Stopped"]
    return ["Running"]
  }

  /** @private */
  drawApproval() {
    const { item, context } = this
    const approval = context.approval()
    const isAsking = item.state === "asking" && approval?.call_id === item.callId
    const key = isAsking ? approval.approval_id : item.settlement ? "settled" : ""
    if (this.ask.dataset.key === key) return
    this.ask.dataset.key = key
    if (isAsking) fill(this.ask, approvalButtons(approval, context.answer, { canAnswer: context.canAnswer(), subject: this.action }))
    else if (item.settlement) fill(this.ask, h("p", { class: "settled" }, ...visible(settlementText(item.settlement))))
    else fill(this.ask, item.state === "asking" && !context.canAnswer() && h("p", { class: "hint" }, "Waiting for a person who may approve this."))
  }

  /** @private */
  drawOutput() {
    const { pieces } = this.item.output
    this.screen.hidden = pieces.length === 0
    if (this.written === pieces.length) return
    this.terminal ??= new TerminalText(this.screen)
    const atEnd = this.screen.scrollHeight - this.screen.scrollTop - this.screen.clientHeight < 30
    for (; this.written < pieces.length; this.written++) this.terminal.write(pieces[this.written].stream, pieces[this.written].text)
    if (atEnd) this.screen.scrollTop = this.screen.scrollHeight
  }
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`
  if (seconds < 60) return `${Math.round(seconds)} s`
  const minutes = Math.floor(seconds / 60)
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`
}
