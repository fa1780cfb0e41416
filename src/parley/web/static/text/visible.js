/**
 * Shows text in which every character matters, such as a command that a person approves. Control characters,
 * bidirectional controls, zero-width characters, unusual spaces and stacked combining marks are shown as their code points.
 */

import { h } from "../dom.js"

// The same characters as in `parley.wire.text`. The last two are symbols that look like spaces.
// The limit prevents a stack overflow in the regular expression. Marks after the fourth mark of a character are drawn over
// each other and over other lines.
const INVISIBLE =
  /(?:(?![ \t\n])[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800\u{1d159}]){1,1000000}|(?<=[\p{Mn}\p{Me}]{4})[\p{Mn}\p{Me}]{1,1000000}/gu

/** The same character four or more times. */
const REPEATED = /(.)\1{3,}|./gsu

/** The maximum number of elements of one text. The code points after them are shown as plain text. */
const MAX_ELEMENTS = 200

/**
 * Return the nodes that show `text`: strings, and an element for each sequence of invisible characters.
 * @param {string} text
 * @returns {(Node | string)[]}
 */
export function visible(text) {
  /** @type {(Node | string)[]} */
  const nodes = []
  let start = 0
  for (const found of text.matchAll(INVISIBLE)) {
    if (found.index > start) nodes.push(text.slice(start, found.index))
    start = found.index
    if (nodes.length >= 2 * MAX_ELEMENTS) break
    nodes.push(h("span", { class: "invisible" }, codeNames(found[0])))
    start += found[0].length
  }
  if (start < text.length) nodes.push(visibleText(text.slice(start)))
  return nodes
}

/**
 * Return the nodes that show a command. More than three empty lines in a row are shown as one marked line, so that they do
 * not move the end of the command out of view.
 * @param {string} text
 * @returns {(Node | string)[]}
 */
export function visibleCommand(text) {
  return text.split(/(?<![^\n])((?:[ \t]*\n){4,})/).flatMap((part, index) =>
    index % 2 ? [h("span", { class: "gap" }, `${part.split("\n").length - 1} empty lines`), "\n"] : visible(part),
  )
}

/** Return `text` with every invisible character replaced by its code point. @param {string} text */
export function visibleText(text) {
  return text.replace(INVISIBLE, codeNames)
}

/** Return the code points of characters, such as `⟨U+202E⟩⟨U+200B⟩ × 5`. @param {string} characters */
function codeNames(characters) {
  return characters.replace(REPEATED, (same, /** @type {string | undefined} */ character) => {
    const name = `⟨U+${(same.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`
    return character ? `${name} × ${same.length / character.length}` : name
  })
}

/**
 * Quote the words of a command for a POSIX shell.
 * @param {string[]} words
 */
function shellQuoted(words) {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(" ")
}

/**
 * Return the shell and the script of `bash -lc SCRIPT` and similar commands. For any other command, return its quoted
 * words as `text`, and null as `shell`.
 * @param {string[]} words
 * @returns {{ shell: string | null, text: string }}
 */
export function commandText(words) {
  const [program = "", option = "", script] = words
  if (words.length === 3 && /^(\/(usr\/)?bin\/)?(ba|z|da)?sh$/.test(program) && /^-l?c$/.test(option))
    return { shell: `${program} ${option}`, text: script }
  return { shell: null, text: shellQuoted(words) }
}
