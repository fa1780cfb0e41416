/**
 * The directory that the dialog of a new conversation proposes: the last one in which a command ran while this browser
 * showed it. The server accepts directories that do not exist, and such a directory is never proposed.
 */

const KEY = "parley.directory"

export function lastDirectory() {
  return localStorage.getItem(KEY)
}

/**
 * Remember the directory of a conversation if a command has run in it.
 * @param {import("./conversation.js").Conversation} conversation
 * @param {string} cwd the directory of the conversation
 * @param {string} callId the command
 */
export function rememberDirectory(conversation, cwd, callId) {
  const item = conversation.turns.at(-1)?.items.findLast((one) => one.kind === "command" && one.callId === callId)
  if (item?.kind === "command" && item.cwd === cwd && item.exitCode !== undefined && item.exitCode >= 0) localStorage.setItem(KEY, cwd)
}
