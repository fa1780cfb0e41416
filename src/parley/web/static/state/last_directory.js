/**
 * The directory that the dialog for a new conversation proposes: the working directory of the conversation in which this
 * browser last saw a command end. The directory exists, because the command has run in it. The server also accepts
 * directories that do not exist.
 */

const KEY = "parley.directory"

export function lastDirectory() {
  return localStorage.getItem(KEY)
}

/**
 * Store the directory of a conversation if a command has run in this directory.
 * @param {import("./conversation.js").Conversation} conversation
 * @param {string} cwd the directory of the conversation
 * @param {string} callId the call id of the command
 */
export function rememberDirectory(conversation, cwd, callId) {
  const item = conversation.turns.at(-1)?.items.findLast((one) => one.kind === "command" && one.callId === callId)
  if (item?.kind === "command" && item.cwd === cwd && item.exitCode !== undefined && item.exitCode >= 0) localStorage.setItem(KEY, cwd)
}
