/**
 * The branches of a conversation. A message that names an earlier message as its parent begins a branch. The log
 * contains the turns of all branches in chronological order. The screen shows one branch.
 */

/**
 * @typedef {import("./items.js").Turn} Turn
 * @typedef {{ turn: Turn, parent: Node | null, children: Node[] }} Node
 */

/** Return the tree of turns: its root, and the tree node of each turn. If the parent of a turn is not loaded, the previous turn counts as the parent. @param {Turn[]} turns @param {string} conversationId */
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
 * Return the turns from the first turn of the conversation to the turn of `node`.
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

/** Return the leaf with the newest turn below a node; the node itself if it has no children. @param {Node} node @returns {Node} */
export function newestBelow(node) {
  let newest = node
  const stack = [node]
  for (let at; (at = stack.pop()); ) {
    if (at.children.length === 0 && at.turn && (newest === node || at.turn.seq > newest.turn.seq)) newest = at
    stack.push(...at.children)
  }
  return newest
}
