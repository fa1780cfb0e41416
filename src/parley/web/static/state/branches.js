/**
 * The branches of a conversation. A message that names an earlier message as its parent begins a branch. The log
 * contains all branches one after another; the screen shows one.
 */

/**
 * @typedef {import("./items.js").Turn} Turn
 * @typedef {{ turn: Turn, parent: Node | null, children: Node[] }} Node
 */

/** Build the tree of turns. A parent that is not loaded counts as the beginning. @param {Turn[]} turns @param {string} conversationId */
export function treeOf(turns, conversationId) {
  /** @type {Node} */
  const root = { turn: /** @type {any} */ (null), parent: null, children: [] }
  /** @type {Map<string, Node>} */
  const byMessage = new Map()
  /** @type {Map<Turn, Node>} */
  const nodes = new Map()
  let previous = root
  for (const turn of turns) {
    const first = turn.items.find((item) => item.kind === "user")
    const parentId = first?.kind === "user" ? first.parent : undefined
    const parent = parentId === undefined ? previous : parentId === conversationId ? root : (byMessage.get(parentId) ?? previous)
    const node = { turn, parent, children: [] }
    parent.children.push(node)
    nodes.set(turn, node)
    for (const item of turn.items) if (item.kind === "user") byMessage.set(item.id, node)
    previous = node
  }
  return { root, nodes }
}

/**
 * Return the turns of the branch that ends with the newest turn below `leaf`, from the first turn to the last one.
 * @param {Node} node
 * @returns {Turn[]}
 */
export function pathTo(node) {
  /** @type {Turn[]} */
  const path = []
  /** @type {Node | null} */
  let at = node
  for (; at?.turn; at = at.parent) path.unshift(at.turn)
  return path
}

/** Return the newest end of the branch that begins at a node. @param {Node} node @returns {Node} */
export function newestBelow(node) {
  let newest = node
  const stack = [node]
  for (let at; (at = stack.pop()); ) {
    if (at.children.length === 0 && at.turn && (newest === node || at.turn.seq > newest.turn.seq)) newest = at
    stack.push(...at.children)
  }
  return newest
}
