/** The dialog that creates a conversation. */

import { h } from "../dom.js"
import { POLICY_NAMES, SANDBOX_NAMES, field, fillChoices, fillModels } from "../composer/turn_settings.js"
import { lastDirectory } from "../state/last_directory.js"
import { openDialog } from "./dialog.js"

/**
 * @param {import("../protocol/connection.js").Connection} connection
 * @param {import("../state/list.js").ConversationList} list
 * @param {(id: string, message: string) => void} created called with the id of the new conversation and the first
 *   message, which may be empty
 */
export async function newConversation(connection, list, created) {
  const settings = await connection.call("settingsList")
  const directories = [...new Set([settings.cwd, ...settings.roots, ...list.entries.map((entry) => entry.cwd)])]
  const last = lastDirectory()
  const cwd = h("input", { type: "text", required: true, list: "directories", autocomplete: "off", spellcheck: "false", dir: "ltr", value: last && directories.includes(last) ? last : settings.cwd })
  const unchecked = h("p", { class: "hint", role: "status" })
  cwd.addEventListener("input", () => {
    const isKnown = !cwd.value.trim() || directories.includes(cwd.value.trim())
    unchecked.textContent = isKnown ? "" : "No conversation in the list has this directory. The server does not check whether it exists: if it does not, every command fails."
  })
  const message = h("textarea", { rows: 3, autofocus: true, dir: "auto" })
  message.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches) return
    event.preventDefault()
    message.form?.requestSubmit()
  })
  const model = h("input", { type: "text", list: "models", autocomplete: "off" })
  const profile = h("select", null)
  const policy = h("select", null)
  const sandbox = h("select", null)
  fillModels(settings.models)
  fillChoices(profile, settings.profiles.map((/** @type {any} */ one) => one.name), {}, settings.profile ? `Default (${settings.profile})` : "None")
  fillChoices(policy, settings.approval_policies, POLICY_NAMES, "")
  fillChoices(sandbox, settings.sandbox_modes, SANDBOX_NAMES, `Default (${SANDBOX_NAMES[settings.sandbox]})`)
  /** Show the default settings of the chosen profile. */
  const showDefaults = () => {
    const chosen = settings.profiles.find((/** @type {any} */ one) => one.name === profile.value) ?? {}
    model.placeholder = chosen.model ?? settings.model
    policy.options[0].text = `Default (${POLICY_NAMES[chosen.approval_policy ?? settings.approval_policy]})`
  }
  profile.addEventListener("change", showDefaults)
  showDefaults()
  const problem = h("p", { class: "problem", role: "alert", hidden: true })
  openDialog("New conversation", (close) => {
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault()
      if (!cwd.value.trim().startsWith("/")) {
        problem.textContent = "Enter the whole path of the directory, beginning with “/”."
        problem.hidden = false
        cwd.focus()
        return
      }
      /** @type {Record<string, string>} */
      const args = { cwd: cwd.value.trim() }
      if (model.value.trim()) args.model = model.value.trim()
      if (profile.value) args.profile = profile.value
      if (policy.value) args.approval_policy = policy.value
      if (sandbox.value) args.sandbox = sandbox.value
      try {
        const result = await connection.call("conversationCreate", args)
        close()
        created(result.conversation_id, message.value.trim())
      } catch (error) {
        problem.textContent = /** @type {Error} */ (error).message
        problem.hidden = false
      }
    }
    return [
      h(
        "form",
        { onsubmit: submit },
        h("datalist", { id: "directories" }, ...directories.map((value) => h("option", { value }))),
        field("First message (optional)", message),
        field("Directory", cwd),
        unchecked,
        field("Model", model),
        settings.profiles.length > 0 && field("Profile", profile),
        settings.approval_policies.length > 1 && field("Approvals", policy),
        settings.sandbox_modes.length > 1 && field("Sandbox", sandbox),
        problem,
        h(
          "div",
          { class: "row end" },
          h("button", { type: "button", class: "button quiet", onclick: close }, "Cancel"),
          h("button", { type: "submit", class: "button primary" }, "Start"),
        ),
      ),
    ]
  })
}
