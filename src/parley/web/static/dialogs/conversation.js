/** The dialogs that rename and delete a conversation. */

import { ask } from "./dialog.js"

/** @typedef {import("../protocol/connection.js").Connection} Connection */

/** @param {Connection} connection @param {string} id @param {string} title @param {() => void} done */
export function rename(connection, id, title, done) {
  ask({ title: "Rename", label: "Title", value: title, button: "Rename", run: (text) => connection.call("conversationRename", { conversation_id: id, title: text }).then(done) })
}

/** @param {Connection} connection @param {string} id @param {string} title @param {() => void} done */
export function remove(connection, id, title, done) {
  ask({
    title: "Delete this conversation?",
    text: `“${title}” is deleted for everybody. This cannot be undone.`,
    button: "Delete",
    danger: true,
    run: () => connection.call("conversationDelete", { conversation_id: id }).then(done),
  })
}
