/**
 * Converts Markdown to DOM nodes. This module uses only the lexer of `marked`, and converts the tokens to DOM nodes. HTML in
 * the Markdown is shown as text. Only links with an `http`, `https` or `mailto` URL are kept.
 */

import { fill, h } from "../dom.js"
import { lexer } from "../vendor/marked.esm.js"
import { codeBlock } from "./code.js"
import { fillLong } from "./long_text.js"

const MAX_MARKDOWN = 200_000
/** The maximum length, in characters, of text that is parsed as Markdown. The lexer can take very long for malicious text. */

const SAME_DELIMITERS = /([*_~`])\1{499}/
const MAX_LINE = 10_000
/** The lexer takes quadratic time for long lines, and for long sequences of the same delimiter. */

const MAX_LINES = 10_000
const MAX_CELLS = 20_000
/** The maximum number of `*`, `_` and `~` in one paragraph. The time of the lexer grows with the square of this number. */
const MAX_DELIMITERS = 3000

/** Matches the end of a paragraph: an empty line, or the beginning of the next item of a list. */
const PARAGRAPH_END = /\n[ \t>]*(?=\n)|\n {0,3}[-*+] +(?=\S)/
const TABLE_HEAD = /^[-:| \t\r>*+\d.]+$/

/** Return whether the lexer would take long for `text`, or the page for the resulting nodes. @param {string} text */
function isTooSlow(text) {
  const lines = text.split("\n")
  if (lines.length > MAX_LINES || lines.some((line) => line.length >= MAX_LINE) || SAME_DELIMITERS.test(text)) return true
  let [squares, cells] = [0, 0]
  for (const paragraph of text.split(PARAGRAPH_END)) {
    squares += (paragraph.match(/[*_~]/g)?.length ?? 0) ** 2
    const rows = paragraph.split("\n")
    cells += rows.length * rows.reduce((most, row) => Math.max(most, TABLE_HEAD.test(row) ? row.split("|").length - 1 : 0), 0)
  }
  return squares > MAX_DELIMITERS ** 2 || cells > MAX_CELLS
}

/** @typedef {any} Token */

/**
 * @param {string} text
 * @returns {Token[]} the tokens of the blocks
 */
export function blocksOf(text) {
  try {
    if (!isTooSlow(text)) return lexer(text, { gfm: true, breaks: true })
  } catch {
    // The text has too many nested levels, such as quotes. An error would hide this text and all later items.
  }
  return [{ type: "paragraph", raw: text, text, tokens: [{ type: "text", raw: text, text }] }]
}

/** Return whether the lexer can parse `text` as Markdown in a short time. @param {string} text */
export function isMarkdown(text) {
  return text.length <= MAX_MARKDOWN && !isTooSlow(text)
}

/**
 * Fill an element with complete text: as Markdown if `isMarkdown` returns true, otherwise as plain text.
 * @param {HTMLElement} element
 * @param {string} text
 */
export function fillMarkdown(element, text) {
  if (!isMarkdown(text)) {
    const plain = h("p", { class: "plain", dir: "auto" })
    fillLong(plain, text)
    element.replaceChildren(plain)
    return
  }
  fill(element, blocksOf(text).map(blockNode))
}

/**
 * @param {Token} token
 * @returns {Node | null}
 */
export function blockNode(token) {
  switch (token.type) {
    case "space":
    case "def":
      return null
    case "heading":
      return h(/** @type {"h3"} */ (`h${Math.max(2, token.depth)}`), { dir: "auto" }, inline(token.tokens))
    case "paragraph":
      return h("p", { dir: "auto" }, inline(token.tokens))
    case "text":
      return h("span", { dir: "auto" }, token.tokens ? inline(token.tokens) : token.text)
    case "code":
      return codeBlock(token.text, (token.lang ?? "").split(/\s/)[0])
    case "blockquote":
      return h("blockquote", null, token.tokens.map(blockNode))
    case "hr":
      return h("hr")
    case "list":
      return list(token)
    case "table":
      return table(token)
    default:
      return h("p", { dir: "auto" }, token.raw)
  }
}

/** @param {Token} token */
function list(token) {
  const items = token.items.map((/** @type {Token} */ item) =>
    h(
      "li",
      { class: item.task ? "task" : undefined, dir: "auto" },
      item.task && h("input", { type: "checkbox", disabled: true, checked: item.checked, "aria-label": item.checked ? "done" : "not done" }),
      item.tokens.filter((/** @type {Token} */ inner) => inner.type !== "checkbox").map(blockNode),
    ),
  )
  return token.ordered ? h("ol", { start: token.start === 1 ? undefined : token.start }, items) : h("ul", null, items)
}

/** @param {Token} token */
function table(token) {
  const cell = (/** @type {"td" | "th"} */ tag, /** @type {Token} */ one) =>
    h(tag, { class: one.align ? `align-${one.align}` : undefined, dir: "auto" }, inline(one.tokens))
  return h(
    "div",
    { class: "table", tabindex: 0, role: "group", "aria-label": "Table" },
    h(
      "table",
      null,
      h("thead", null, h("tr", null, token.header.map((/** @type {Token} */ one) => cell("th", one)))),
      h("tbody", null, token.rows.map((/** @type {Token[]} */ row) => h("tr", null, row.map((one) => cell("td", one))))),
    ),
  )
}

/**
 * @param {Token[]} tokens
 * @returns {Node[]}
 */
function inline(tokens) {
  return tokens.map((token) => {
    switch (token.type) {
      case "strong":
      case "em":
      case "del":
        return h(token.type, null, inline(token.tokens))
      case "codespan":
        return h("code", { dir: "ltr" }, token.text)
      case "br":
        return h("br")
      case "link":
        return link(token.href, token.tokens ? inline(token.tokens) : [token.text])
      case "image":
        return link(token.href, [`🖼 ${token.text || token.href}`]) // images from other hosts are not loaded
      case "text":
      case "escape":
        return token.tokens ? h("span", null, inline(token.tokens)) : document.createTextNode(token.text)
      default:
        return document.createTextNode(token.raw)
    }
  })
}

/**
 * Create a link. If the URL is not an `http`, `https` or `mailto` URL, create plain text instead.
 * @param {string} address
 * @param {(Node | string)[]} content
 */
function link(address, content) {
  let url
  try {
    url = new URL(address)
  } catch {
    url = null
  }
  if (!url || !["http:", "https:", "mailto:"].includes(url.protocol)) return h("span", { class: "not-a-link" }, content)
  return h("a", { href: url.href, target: "_blank", rel: "noopener noreferrer", title: url.href }, content)
}
