/**
 * Shows the diff of one file: line numbers, changed words, and comments on lines.
 */

import { h } from "../dom.js"
import { compareWords } from "../text/diff.js"
import { fillLong } from "../text/long_text.js"
import { visible } from "../text/visible.js"

/**
 * @typedef {import("../text/diff.js").FileDiff} FileDiff
 * @typedef {import("../text/diff.js").DiffLine} DiffLine
 * @typedef {import("../state/comments.js").Comments} Comments
 */

const FIRST_FILES = 20
const FIRST_LINES = 400
const NEXT_FILES = 100
const NEXT_LINES = 2000
/**
 * The maximum cost of the text that is drawn at first, or by one click on a button. The cost of a text is its length. A
 * character that is not Latin counts as several characters, because the browser may have to search for a font.
 */
const FIRST_COST = 200_000
const NEXT_COST = 400_000
const FOREIGN_COST = 16
const LAST_LATIN = 0x24f
/** The maximum effort of comparing words when files are drawn, in pairs of characters. */
const MAX_COMPARED = 2_000_000
const MAX_LINE = 2000
const LABELS = { add: "added", delete: "deleted", update: "", move: "moved" }

/**
 * @typedef {{ comments: Comments | null, cwd?: string }} Options `comments` is null if no message can be sent
 * @typedef {{ compared: number }} Effort the effort of comparing words so far
 */

/** Return the cost of drawing a text. @param {string} text */
function costOf(text) {
  let cost = text.length
  for (let index = 0; index < text.length; index++) if (text.charCodeAt(index) > LAST_LATIN) cost += FOREIGN_COST - 1
  return cost
}

/** Return the cost of drawing a line, which may be only the beginning of a long line. @param {string} text */
function costOfLine(text) {
  return costOf(text.slice(0, MAX_LINE))
}

/**
 * Create the views of the diffs of files. If there are many files or lines, show only the first files, and a button that
 * shows the next files.
 * @param {FileDiff[]} files
 * @param {Options} options
 * @returns {Element[]}
 */
export function fileDiffs(files, options) {
  let shown = 0
  const next = (/** @type {number} */ maxFiles, /** @type {number} */ maxLines, /** @type {number} */ maxCost) => {
    const effort = { compared: 0 }
    const nodes = []
    let [lines, cost] = [0, 0]
    for (; shown < files.length && nodes.length < maxFiles; shown++) {
      const file = files[shown]
      const content = file.hunks.flatMap((hunk) => hunk.lines)
      const contentCost = content.reduce((sum, line) => sum + costOfLine(line.text), 0)
      const isOpen = content.length <= FIRST_LINES && contentCost <= FIRST_COST // a longer file is closed at first
      cost += costOf(file.path) + costOf(file.from ?? "")
      if (isOpen) [lines, cost] = [lines + content.length, cost + contentCost]
      if (nodes.length && (lines > maxLines || cost > maxCost)) break
      nodes.push(fileDiff(file, options, effort, isOpen))
    }
    return nodes
  }
  const more = h("button", { type: "button", class: "more", onclick: () => show() })
  const label = () => {
    more.textContent = `Show more files (${(files.length - shown).toLocaleString()} left)`
  }
  const show = () => {
    more.before(...next(NEXT_FILES, NEXT_LINES, NEXT_COST))
    label()
    if (shown >= files.length) more.remove()
  }
  const first = next(FIRST_FILES, FIRST_LINES, FIRST_COST)
  label()
  return shown < files.length ? [...first, more] : first
}

/**
 * Create the view of the diff of one file.
 * @param {FileDiff} file
 * @param {Options} options
 * @param {Effort} effort
 * @param {boolean} isOpen
 */
function fileDiff(file, { comments, cwd = "" }, effort, isOpen) {
  const shown = shortPath(file.path, cwd)
  const head = h(
    "summary",
    { class: "file-head" },
    h("span", { class: "path", dir: "ltr", title: file.path }, file.from && [...visible(shortPath(file.from, cwd)), " → "], ...visible(shown)),
    LABELS[file.kind] && h("span", { class: `file-kind ${file.kind}` }, LABELS[file.kind]),
    counts(file),
  )
  const body = h("div", { class: "file-body" })
  const details = h("details", { class: "file", open: isOpen }, head, body)
  let isFirst = true
  const build = () => {
    if (body.childNodes.length || !details.open) return
    body.append(diffTable({ ...file, path: shown }, comments, isFirst ? effort : { compared: 0 }))
  }
  details.addEventListener("toggle", build)
  build()
  isFirst = false
  return details
}

/** @param {{ added: number, deleted: number }} file */
export function counts({ added, deleted }) {
  return h(
    "span",
    { class: "counts", "aria-label": `${added} lines added, ${deleted} lines deleted` },
    added > 0 && h("span", { class: "added" }, `+${added}`),
    deleted > 0 && h("span", { class: "deleted" }, `−${deleted}`),
  )
}

/**
 * @param {string} path
 * @param {string} cwd
 */
export function shortPath(path, cwd) {
  return cwd && path.startsWith(`${cwd}/`) ? path.slice(cwd.length + 1) : path
}

/**
 * @param {FileDiff} file
 * @param {Comments | null} comments
 * @param {Effort} effort
 */
function diffTable(file, comments, effort) {
  const body = h("tbody")
  const rows = file.hunks.flatMap((hunk, index) => [...(hunk.header && (index > 0 || file.kind !== "add") ? [hunk.header] : []), ...pairs(hunk.lines, effort)])
  let shown = 0
  /** @type {HTMLButtonElement | null} */
  let more = null
  /** Return the end of the next part. @param {number} maxLines @param {number} maxCost */
  const nextEnd = (maxLines, maxCost) => {
    let [end, cost] = [shown, 0]
    for (; end < rows.length && end - shown < maxLines; end++) {
      const row = rows[end]
      cost += typeof row === "string" ? row.length : costOfLine(row.text)
      if (end > shown && cost > maxCost) break
    }
    return end
  }
  const show = (/** @type {number} */ end) => {
    for (const row of rows.slice(shown, end)) body.append(...(typeof row === "string" ? [hunkRow(row)] : lineRow(row, file, comments)))
    shown = end
    if (!more) return
    more.textContent = `Show ${nextEnd(NEXT_LINES, NEXT_COST) - shown} more lines`
    if (shown >= rows.length) more.remove()
  }
  const table = h("table", { class: "diff", dir: "ltr", "aria-label": `Changes of ${file.path}` }, body)
  const first = nextEnd(FIRST_LINES, FIRST_COST)
  if (first < rows.length) more = h("button", { type: "button", class: "more", onclick: () => show(nextEnd(NEXT_LINES, NEXT_COST)) })
  show(first)
  if (!rows.length) body.append(h("tr", null, h("td", { class: "empty" }, file.kind === "delete" ? "The file is deleted." : "No text has changed.")))
  table.addEventListener("keydown", (event) => moveFocus(event))
  return h("div", { class: "diff-scroll", role: "group", "aria-label": `Changes of ${file.path}`, tabindex: 0 }, table, more)
}

/** Handle a key press in a diff: the arrow keys move the focus between lines. @param {KeyboardEvent} event */
function moveFocus(event) {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return
  const row = /** @type {Element} */ (event.target).closest("tr")
  if (!row || !(event.target instanceof HTMLButtonElement)) return
  for (let next = step(row, event.key); next; next = step(next, event.key)) {
    const button = /** @type {HTMLElement | null} */ (next.querySelector(".comment-here"))
    if (!button) continue
    event.preventDefault()
    button.focus()
    return
  }
}

/**
 * @param {Element} row
 * @param {string} key
 */
function step(row, key) {
  return key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling
}

/**
 * Add the changed words to each deleted line and to the added line that replaces it.
 * @param {DiffLine[]} lines
 * @param {Effort} effort
 * @returns {(DiffLine & { parts?: { text: string, changed: boolean }[] })[]}
 */
function pairs(lines, effort) {
  /** @type {(DiffLine & { parts?: { text: string, changed: boolean }[] })[]} */
  const result = lines.map((line) => ({ ...line }))
  for (let start = 0; start < result.length; start++) {
    if (result[start].kind !== "delete") continue
    let middle = start
    while (result[middle]?.kind === "delete") middle++
    let end = middle
    while (result[end]?.kind === "add") end++
    for (let index = 0; index < Math.min(middle - start, end - middle); index++) {
      const [before, after] = [result[start + index].text, result[middle + index].text]
      const compared = effort.compared + before.length * after.length
      if (compared > MAX_COMPARED) continue
      effort.compared = compared
      const words = compareWords(before, after)
      if (!words) continue
      result[start + index].parts = words.before
      result[middle + index].parts = words.after
    }
    start = Math.max(start, end - 1)
  }
  return result
}

/** @param {string} header */
function hunkRow(header) {
  return h("tr", { class: "hunk" }, h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "text" }, ...visible(header)))
}

const SIGNS = { add: "+", delete: "−", same: " ", note: "" }

/**
 * @param {DiffLine & { parts?: { text: string, changed: boolean }[] }} line
 * @param {FileDiff} file
 * @param {Comments | null} comments
 * @returns {Element[]}
 */
function lineRow(line, file, comments) {
  const text = line.parts
    ? line.parts.map(({ text: part, changed }) => (changed ? h("mark", null, ...visible(part)) : visible(part))).flat()
    : longLine(line.text)
  const number = line.new ?? line.old
  const canComment = comments && number !== null
  const row = h(
    "tr",
    { class: line.kind },
    h("td", { class: "number" }, line.old ?? ""),
    h("td", { class: "number" }, line.new ?? ""),
    h(
      "td",
      { class: "text" },
      canComment &&
        h(
          "button",
          {
            type: "button",
            class: "comment-here",
            "aria-label": `Comment on line ${number}: ${line.text.slice(0, 200)}`,
            title: "Comment on this line",
            onclick: () => edit(null),
          },
          "+",
        ),
      h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[line.kind]),
      ...text,
    ),
  )
  /** @type {Element[]} */
  const rows = [row]
  /** @param {import("../state/comments.js").Comment | null} existing */
  const edit = (existing) => {
    if (!comments) return
    const area = h("textarea", { rows: 2, "aria-label": "Comment", placeholder: "Comment for the agent" })
    area.value = existing?.text ?? ""
    const save = () => {
      const value = area.value.trim()
      if (existing) comments.remove(existing.id)
      editor.remove()
      shownComment?.remove()
      if (!value) return
      const saved = comments.add({ path: file.path, line: number ?? 0, isOld: line.new === null, quote: line.text.slice(0, 300), text: value })
      show(saved)
    }
    const editor = h(
      "tr",
      { class: "comment" },
      h("td", { colspan: 3 }, area, h("div", { class: "row" }, h("button", { type: "button", class: "button primary small", onclick: save }, "Add comment"), h("button", { type: "button", class: "button quiet small", onclick: () => editor.remove() }, "Cancel"))),
    )
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save()
      if (event.key === "Escape") {
        event.stopPropagation()
        editor.remove()
      }
    })
    row.after(editor)
    area.focus()
  }
  /** @type {Element | null} */
  let shownComment = null
  /** @param {import("../state/comments.js").Comment} comment */
  const show = (comment) => {
    shownComment = commentRow(comment, () => edit(comment), () => comments?.remove(comment.id))
    row.after(shownComment)
  }
  if (comments && number !== null) {
    for (const comment of comments.at(file.path, number, line.new === null)) {
      shownComment = commentRow(comment, () => edit(comment), () => comments.remove(comment.id))
      rows.push(shownComment)
    }
  }
  return rows
}

/** @param {string} text */
function longLine(text) {
  if (text.length <= MAX_LINE) return visible(text)
  const line = h("span", null)
  fillLong(line, text, visible, MAX_LINE)
  return [line]
}

/**
 * @param {import("../state/comments.js").Comment} comment
 * @param {() => void} edit
 * @param {() => void} remove
 */
function commentRow(comment, edit, remove) {
  const row = h(
    "tr",
    { class: "comment", "data-comment": comment.id },
    h(
      "td",
      { colspan: 3 },
      h("p", { dir: "auto" }, comment.text),
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", class: "button quiet small", onclick: edit }, "Edit"),
        h("button", { type: "button", class: "button quiet small", onclick: () => (remove(), row.remove()) }, "Remove"),
      ),
    ),
  )
  return row
}
