/**
 * Shows the output of a command. Colours, backspaces and carriage returns have the same effect as in a terminal. Other
 * escape sequences are discarded. Output can only be appended.
 */

import { h } from "../dom.js"
import { visible } from "./visible.js"

const MAX_LINE = 4000
const MAX_LINES = 2000

/* eslint-disable no-control-regex */
const SEQUENCE =
  /\u001b(?:\[([0-9;:]*)([@-~])|\[[^@-~]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[PX^_][^\u001b]*\u001b\\|[ -/]*[0-Z\\-~])|\r\n|\n|\r|\u0008/g

/** @typedef {{ fg: string, bg: string, bold: boolean, dim: boolean, italic: boolean, underline: boolean, inverse: boolean }} Style */
/** @typedef {{ key: string, style: Style, stream: string }} Look */

const PLAIN = Object.freeze({ fg: "", bg: "", bold: false, dim: false, italic: false, underline: false, inverse: false })

export class TerminalText {
  /** @param {HTMLElement} element the element to which the lines are added */
  constructor(element) {
    this.element = element
    /** @private @type {Record<string, Look>} the current look, keyed by stream */
    this.looks = {}
    /** @private @type {Record<string, string>} the beginning of an incomplete escape sequence, keyed by stream */
    this.partial = {}
    /** @private @type {string[]} the first characters of the last line: at most MAX_LINE code units */
    this.line = []
    /** @private @type {Look[]} the looks of these characters */
    this.lineLooks = []
    /** @private */
    this.width = 0
    /** @private */
    this.column = 0
    /** @private */
    this.node = this.newLine()
    /** The number of lines that were written, including removed lines. */
    this.count = 1
    /** @private the number of lines that were removed at the beginning */
    this.removed = 0
    /** @private @type {HTMLElement | null} */
    this.notice = null
  }

  /**
   * @param {string} stream
   * @param {string} text
   */
  write(stream, text) {
    if (stream === "gap") {
      this.feed()
      this.node.replaceChildren(h("span", { class: "gap" }, `… ${Number(text).toLocaleString()} bytes are not shown …`))
      this.line = []
      this.feed()
      return
    }
    let look = this.looks[stream] ?? lookOf(stream, { ...PLAIN })
    let all = (this.partial[stream] ?? "") + text
    const escape = all.lastIndexOf("\u001b")
    const isPartial = escape >= 0 && all.length - escape < 64 && !new RegExp(`^${SEQUENCE.source}`).test(all.slice(escape))
    this.partial[stream] = isPartial ? all.slice(escape) : ""
    if (isPartial) all = all.slice(0, escape)
    let start = 0
    for (const found of all.matchAll(SEQUENCE)) {
      if (found.index > start) this.print(all.slice(start, found.index), look)
      start = found.index + found[0].length
      if (found[0] === "\n" || found[0] === "\r\n") this.feed()
      else if (found[0] === "\r") this.column = 0
      else if (found[0] === "\b") this.column = Math.max(0, this.column - 1)
      else if (found[2] === "m") {
        const style = { ...look.style }
        applySgr(style, found[1])
        look = lookOf(stream, style)
      }
      else if (found[2] === "K") this.clearToEnd()
    }
    if (start < all.length) this.print(all.slice(start), look)
    this.looks[stream] = look
    this.drawLine()
  }

  /**
   * @private
   * @param {string} text
   * @param {Look} look
   */
  print(text, look) {
    const end = Math.min(text.length, MAX_LINE - this.column)
    for (let index = 0; index < end; index++) {
      this.line[this.column + index] = text[index]
      this.lineLooks[this.column + index] = look
    }
    this.column += text.length
    this.width = Math.max(this.width, this.column)
  }

  /** @private */
  clearToEnd() {
    this.width = Math.min(this.width, this.column)
    this.line.length = Math.min(this.line.length, this.width)
  }

  /** @private */
  feed() {
    this.drawLine()
    this.node.append("\n")
    this.line = []
    this.width = this.column = 0
    this.node = this.newLine()
    this.count++
    if (this.count - this.removed > MAX_LINES) {
      this.notice ??= this.element.insertBefore(h("span", { class: "line gap" }), this.element.firstChild)
      this.notice.nextSibling?.remove()
      this.removed++
      this.notice.textContent = `… ${this.removed.toLocaleString()} earlier lines are not shown …\n`
    }
  }

  /** @private */
  newLine() {
    const node = h("span", { class: "line" })
    this.element.append(node)
    return node
  }

  /** @private */
  drawLine() {
    if (!this.line.length) {
      if (!this.node.querySelector(".gap")) this.node.replaceChildren()
      return
    }
    const nodes = []
    for (let start = 0, end = 0; start < this.line.length; start = end) {
      const look = this.lineLooks[start]
      while (end < this.line.length && this.lineLooks[end].key === look.key) end++
      nodes.push(runNode(this.line.slice(start, end).join(""), look))
    }
    if (this.width > MAX_LINE)
      nodes.push(h("span", { class: "gap" }, ` … ${(this.width - MAX_LINE).toLocaleString()} more characters in this line`))
    this.node.replaceChildren(...nodes)
  }
}

/**
 * @param {string} stream
 * @param {Style} style
 * @returns {Look}
 */
function lookOf(stream, style) {
  return { key: JSON.stringify([stream, style]), style, stream }
}

/**
 * @param {string} text
 * @param {Look} look
 */
function runNode(text, { style, stream }) {
  const classes = [stream === "stderr" && "stderr", style.bold && "bold", style.dim && "dim", style.italic && "italic", style.underline && "underline", style.inverse && "inverse"]
  const node = h("span", { class: classes.filter(Boolean).join(" ") || undefined }, ...visible(text))
  if (/^[0-9]+$/.test(style.fg)) node.classList.add(`fg-${style.fg}`)
  else if (style.fg) node.style.color = style.fg
  if (/^[0-9]+$/.test(style.bg)) node.classList.add(`bg-${style.bg}`)
  else if (style.bg) node.style.backgroundColor = style.bg
  return node
}

/**
 * Apply "Select Graphic Rendition" parameters.
 * @param {Style} style
 * @param {string} parameters
 */
function applySgr(style, parameters) {
  const codes = parameters.split(/[;:]/).map(Number)
  for (let index = 0; index < codes.length; index++) {
    const code = codes[index]
    if (code === 0) Object.assign(style, PLAIN)
    else if (code === 1) style.bold = true
    else if (code === 2) style.dim = true
    else if (code === 3) style.italic = true
    else if (code === 4) style.underline = true
    else if (code === 7) style.inverse = true
    else if (code === 22) style.bold = style.dim = false
    else if (code === 23) style.italic = false
    else if (code === 24) style.underline = false
    else if (code === 27) style.inverse = false
    else if (code === 39) style.fg = ""
    else if (code === 49) style.bg = ""
    else if (code >= 30 && code <= 37) style.fg = String(code - 30)
    else if (code >= 40 && code <= 47) style.bg = String(code - 40)
    else if (code >= 90 && code <= 97) style.fg = String(code - 82)
    else if (code >= 100 && code <= 107) style.bg = String(code - 92)
    else if (code === 38 || code === 48) {
      const isRgb = codes[index + 1] === 2
      const colour = isRgb ? rgb(codes.slice(index + 2, index + 5)) : indexed(codes[index + 2])
      index += isRgb ? 4 : 2
      if (code === 38) style.fg = colour
      else style.bg = colour
    }
  }
}

/** @param {number} code */
function indexed(code) {
  if (!(code >= 0 && code <= 255)) return ""
  if (code < 16) return String(code)
  if (code >= 232) return rgb(Array(3).fill(8 + (code - 232) * 10))
  const level = (/** @type {number} */ n) => (n ? 55 + n * 40 : 0)
  return rgb([level(Math.floor((code - 16) / 36)), level(Math.floor(((code - 16) % 36) / 6)), level((code - 16) % 6)])
}

/** @param {number[]} parts */
function rgb(parts) {
  return parts.length === 3 && parts.every((part) => part >= 0 && part <= 255) ? `rgb(${parts.join(", ")})` : ""
}
