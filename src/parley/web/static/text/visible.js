/**
 * Shows text whose every character matters, such as a command that a person approves. Control characters,
 * bidirectional controls and zero-width characters appear as their code points.
 */

import { h } from "../dom.js"

const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff]|[\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu

/**
 * Return nodes for a text: text nodes, and an element for each invisible character.
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

/** Return a text in which every invisible character is replaced by its code point. @param {string} text */
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
export function shellQuoted(words) {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(" ")
}

/**
 * Return the script of `bash -lc SCRIPT` and similar commands, or the quoted words of any other command.
 * @param {string[]} words
 * @returns {{ shell: string | null, text: string }}
 */
export function commandText(words) {
  const [program = "", option = "", script] = words
  if (words.length === 3 && /^(\/(usr\/)?bin\/)?(ba|z|da)?sh$/.test(program) && /^-l?c$/.test(option))
    return { shell: `${program} ${option}`, text: script }
  return { shell: null, text: shellQuoted(words) }
}
