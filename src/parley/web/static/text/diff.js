/**
 * Reads unified diffs and finds the words that differ between two lines. Only a line feed ends a line of a diff: a carriage
 * return and U+2028 are characters of the line. Inside a hunk, a line that begins with `+++ ` or `--- ` is an added or
 * deleted line.
 */

/**
 * @typedef {{ kind: "add" | "delete" | "same" | "note", text: string, old: number | null, new: number | null }} DiffLine
 * @typedef {{ header: string, lines: DiffLine[] }} Hunk
 * @typedef {{ path: string, from: string | null, kind: "add" | "delete" | "update" | "move", hunks: Hunk[],
 *   added: number, deleted: number }} FileDiff
 */

/**
 * Parse a unified diff, with or without the headers of Git, and return the diff of each file.
 * @param {string} text
 * @returns {FileDiff[]}
 */
export function readDiff(text) {
  /** @type {FileDiff[]} */
  const files = []
  /** @type {FileDiff | null} */
  let file = null
  /** @type {Hunk | null} */
  let hunk = null
  let [oldLine, newLine, oldLeft, newLeft] = [0, 0, 0, 0]
  const begin = () => {
    file = { path: "", from: null, kind: "update", hunks: [], added: 0, deleted: 0 }
    files.push(file)
    hunk = null
  }
  const lines = text.split("\n")
  if (lines.at(-1) === "") lines.pop()
  for (const line of lines) {
    if (hunk && (oldLeft > 0 || newLeft > 0 || line.startsWith("\\"))) {
      const current = /** @type {FileDiff} */ (/** @type {unknown} */ (file))
      const /** @type {Hunk} */ open = hunk
      if (line.startsWith("+")) {
        open.lines.push({ kind: "add", text: line.slice(1), old: null, new: newLine++ })
        current.added++
        newLeft--
      } else if (line.startsWith("-")) {
        open.lines.push({ kind: "delete", text: line.slice(1), old: oldLine++, new: null })
        current.deleted++
        oldLeft--
      } else if (line.startsWith("\\")) open.lines.push({ kind: "note", text: line.slice(2), old: null, new: null })
      else {
        open.lines.push({ kind: "same", text: line.slice(1), old: oldLine++, new: newLine++ })
        oldLeft--
        newLeft--
      }
      continue
    }
    const header = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(line)
    if (header) {
      if (!file) begin()
      oldLine = Number(header[1])
      newLine = Number(header[3])
      oldLeft = Number(header[2] ?? 1)
      newLeft = Number(header[4] ?? 1)
      hunk = { header: line, lines: [] }
      const /** @type {any} */ current = file
      current.hunks.push(hunk)
      continue
    }
    if (line.startsWith("diff --git ")) {
      begin()
      continue
    }
    if (line.startsWith("--- ")) {
      const /** @type {any} */ current = file
      if (!current || current.hunks.length) begin()
      const /** @type {any} */ now = file
      const path = pathOf(line.slice(4), "a/")
      if (path === null) now.kind = "add"
      else now.path ||= path
      continue
    }
    const /** @type {any} */ current = file
    if (!current) continue
    if (line.startsWith("+++ ")) {
      const path = pathOf(line.slice(4), "b/")
      if (path === null) current.kind = "delete"
      else current.path = path
    } else if (line.startsWith("new file")) current.kind = "add"
    else if (line.startsWith("deleted file")) current.kind = "delete"
    else if (line.startsWith("rename from ")) {
      current.kind = "move"
      current.from = line.slice(12)
    } else if (line.startsWith("rename to ")) current.path = line.slice(10)
  }
  return files.filter((one) => one.path)
}

/**
 * @param {string} text
 * @param {string} prefix
 */
function pathOf(text, prefix) {
  const path = text.split("\t")[0]
  if (path === "/dev/null") return null
  return path.startsWith(prefix) ? path.slice(2) : path
}

/**
 * Convert the `changes` of a patch event to file diffs.
 * @param {Record<string, any>} changes
 * @returns {FileDiff[]}
 */
export function diffsOfChanges(changes) {
  return Object.entries(changes).map(([path, change]) => {
    /** @type {FileDiff} */
    const file = { path, from: null, kind: "update", hunks: [], added: 0, deleted: 0 }
    if (change === "delete") file.kind = "delete"
    else if (change.add) {
      const lines = change.add.content.split("\n")
      if (lines.at(-1) === "") lines.pop()
      file.kind = "add"
      file.added = lines.length
      file.hunks = [{ header: "", lines: lines.map((/** @type {string} */ text, /** @type {number} */ index) => ({ kind: /** @type {const} */ ("add"), text, old: null, new: index + 1 })) }]
    } else if (change.update) {
      // The server sends hunks without file headers.
      const read = readDiff(`--- a\n+++ a\n${change.update.unified_diff}`)
      const found = read[0]
      if (found) Object.assign(file, { hunks: found.hunks, added: found.added, deleted: found.deleted })
      if (change.update.move_path) Object.assign(file, { kind: "move", from: path, path: change.update.move_path })
    }
    return file
  })
}

const MAX_WORDS = 300

/**
 * Compare two lines word by word. Return the changed and unchanged parts of both lines. If the lines have little in common
 * or are too long, return null.
 * @param {string} before
 * @param {string} after
 * @returns {{ before: { text: string, changed: boolean }[], after: { text: string, changed: boolean }[] } | null}
 */
export function compareWords(before, after) {
  const a = before.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? []
  const b = after.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? []
  if (a.length > MAX_WORDS || b.length > MAX_WORDS) return null
  const width = b.length + 1
  const lengths = new Uint16Array((a.length + 1) * width)
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      lengths[i * width + j] =
        a[i] === b[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1])
  /** @type {{ text: string, changed: boolean }[]} */
  const left = []
  /** @type {{ text: string, changed: boolean }[]} */
  const right = []
  const put = (/** @type {typeof left} */ parts, /** @type {string} */ text, /** @type {boolean} */ changed) => {
    const last = parts.at(-1)
    if (last && last.changed === changed) last.text += text
    else parts.push({ text, changed })
  }
  let [i, j, common] = [0, 0, 0]
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      put(left, a[i], false)
      put(right, b[j], false)
      if (a[i].trim()) common += a[i].length
      i++
      j++
    } else if (j >= b.length || (i < a.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) put(left, a[i++], true)
    else put(right, b[j++], true)
  }
  return common * 3 >= Math.max(before.trim().length, after.trim().length) ? { before: left, after: right } : null
}
