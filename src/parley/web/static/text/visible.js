/**
 * Shows text in which every character matters, such as a command that a person approves. Control characters,
 * bidirectional controls, zero-width characters and unusual spaces are shown as their code points.
 */

import { h } from "../dom.js"

// The same characters as in `parley.wire.text`. The last two are symbols that look like spaces.
const INVISIBLE = /(?![ \t\n])[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800\u{1d159}]/gu

/**
 * Return the nodes that show `text`: strings, and an element for each invisible character.
 * @param {string} text
 * @returns {(Node | string)[]}
 */
export function visible(text) {
  /** @type {(Node | string)[]} */
  const nodes = []
  let start = 0
  for (const found of text.matchAll(INVISIBLE)) {
    if (found.index > start) nodes.push(text.slice(start, found.index))
    nodes.push(h("span", { class: "invisible" }, codeName(found[0])))
    start = found.index + found[0].length
  }
  if (start < text.length) nodes.push(text.slice(start))
  return nodes
}

/** Return `text` with every invisible character replaced by its code point. @param {string} text */
export function visibleText(text) {
  return text.replace(INVISIBLE, codeName)
}

/** @param {string} character */
function codeName(character) {
  return `⟨U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`
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
