/** The view of the file changes of one turn or of all turns. The user can comment on the lines of a single turn. */

import { fill, h } from "../dom.js"
import { readDiff } from "../text/diff.js"
import { visible } from "../text/visible.js"
import { counts, fileDiffs } from "./diff_view.js"

const NOT_SHOWN = "Changes made by commands are not shown."

/** The maximum number of characters of a message in the list of turns. */
const TITLE_CHARACTERS = 50

const ALL = "all"

export class Changes {
  /**
   * @param {() => import("../state/items.js").Turn[]} turns returns the loaded turns of the branch that is shown
   * @param {() => boolean} isComplete returns whether all turns are loaded
   * @param {import("./item_view.js").Context} context
   */
  constructor(turns, isComplete, context) {
    this.turns = turns
    this.isComplete = isComplete
    this.context = context
    this.choice = h("select", { "aria-label": "Turn", onchange: () => this.draw(true) })
    this.total = h("span", { class: "total" })
    this.files = h("div", { class: "files" })
    this.node = h("div", { class: "changes", hidden: true, tabindex: 0, role: "region", "aria-label": "Changes" }, h("div", { class: "changes-head" }, this.choice, this.total), this.files)
    /** @private */
    this.drawn = ""
    /** @private draws the changes after the user has written a comment */
    this.written = new MutationObserver(() => this.update())
  }

  /** Draw the changes of the chosen turn if the view is visible. */
  update() {
    if (this.node.hidden) return
    const changed = this.turns().filter((turn) => turn.diff)
    const chosen = this.choice.value
    const last = changed.at(-1)
    fill(
      this.choice,
      ...changed.map((turn) => h("option", { value: String(turn.seq), dir: "auto" }, ...visible(titleOf(turn) + (turn === last ? " (latest)" : "")))).reverse(),
    )
    if (changed.length > 1) this.choice.append(h("option", { value: ALL }, this.isComplete() ? "All turns" : "All loaded turns"))
    if ([...this.choice.options].some((option) => option.value === chosen) && this.drawn && !this.followsLast) this.choice.value = chosen
    else this.choice.value = String(last?.seq ?? "")
    this.choice.hidden = changed.length === 0
    this.draw()
  }

  /** @private */
  get followsLast() {
    return this.choice.dataset.chosen === undefined
  }

  /** @private @param {boolean} [isChosen] true if the user has chosen the turn */
  draw(isChosen = false) {
    if (document.activeElement === this.choice) this.choice.dataset.chosen = ""
    const isAll = this.choice.value === ALL
    const shown = this.turns().filter((turn) => turn.diff && (isAll || String(turn.seq) === this.choice.value))
    const key = shown.map((turn) => `${turn.seq}:${turn.diff.length}:${turn.diff.slice(-200)}`).join("\n") || "none"
    if (key === this.drawn) return
    if (!isChosen && this.files.querySelector("textarea")) {
      // A comment is being written.
      this.written.observe(this.files, { childList: true, subtree: true })
      return
    }
    this.written.disconnect()
    this.drawn = key
    const comments = isAll ? null : this.context.comments()
    const sum = { added: 0, deleted: 0 }
    let count = 0
    const parts = shown.flatMap((turn) => {
      const files = readDiff(turn.diff)
      count += files.length
      for (const file of files) {
        sum.added += file.added
        sum.deleted += file.deleted
      }
      return [isAll && h("h2", { dir: "auto" }, ...visible(titleOf(turn))), ...fileDiffs(files, { comments, cwd: this.context.cwd() })]
    })
    const total = isAll ? `${shown.length} turns ` : `${count} ${count === 1 ? "file" : "files"} `
    fill(this.total, count ? total : "", count > 0 && counts(sum))
    if (!count) fill(this.files, h("p", { class: "empty-transcript" }, `No files have been changed by patches in the loaded turns. ${NOT_SHOWN}`))
    else fill(this.files, ...parts, h("p", { class: "hint" }, NOT_SHOWN))
  }
}

/**
 * Return the beginning of the message that began a turn.
 * @param {import("../state/items.js").Turn} turn
 * @returns {string}
 */
function titleOf(turn) {
  const message = turn.items.find((item) => item.kind === "user")
  if (message?.kind !== "user") return "Turn without a message"
  const line = message.content.map((one) => one.text ?? "").join("\n").trim().split("\n", 1)[0]
  return line.length > TITLE_CHARACTERS ? `${line.slice(0, TITLE_CHARACTERS)}…` : line || "Message without text"
}
