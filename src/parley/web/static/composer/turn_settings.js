/** The current model, approval policy and sandbox mode of a conversation, and the settings that the user has chosen for the next turn. */

import { h, icon } from "../dom.js"

export const POLICY_NAMES = /** @type {Record<string, string>} */ ({
  untrusted: "Ask before commands",
  "on-failure": "Ask after failures",
  "on-request": "The model decides",
  never: "Never ask",
})
export const SANDBOX_NAMES = /** @type {Record<string, string>} */ ({
  "read-only": "Read only",
  "workspace-write": "Write in the directory",
  "danger-full-access": "Full access",
})

export class TurnSettings {
  /** @param {import("../protocol/connection.js").Connection} connection @param {string} conversationId */
  constructor(connection, conversationId) {
    this.connection = connection
    this.conversationId = conversationId
    this.model = h("input", { type: "text", list: "models", placeholder: "Unchanged", autocomplete: "off", "aria-label": "Model" })
    this.policy = h("select", { "aria-label": "Approval policy" })
    this.sandbox = h("select", { "aria-label": "Sandbox" })
    this.summary = h("summary", { class: "icon-button", title: "Settings for the next turn", "aria-label": "Settings for the next turn" }, icon("gear"), h("span", { class: "settings-dot", hidden: true }))
    this.node = h(
      "details",
      { class: "turn-settings" },
      this.summary,
      h(
        "div",
        { class: "panel" },
        h("p", { class: "panel-title" }, "From the next turn on"),
        field("Model", this.model),
        field("Approvals", this.policy),
        field("Sandbox", this.sandbox),
      ),
    )
    this.node.addEventListener("toggle", () => void this.load())
    this.node.addEventListener("change", () => this.mark())
    this.node.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return
      event.stopPropagation()
      this.node.open = false
      this.summary.focus()
    })
    document.addEventListener("click", (event) => {
      if (this.node.open && !this.node.contains(/** @type {Node} */ (event.target))) this.node.open = false
    })
  }

  /** Return the chosen settings as arguments of `conversationSendMessage`. */
  overrides() {
    /** @type {Record<string, string>} */
    const chosen = {}
    if (this.model.value.trim()) chosen.model = this.model.value.trim()
    if (this.policy.value) chosen.approval_policy = this.policy.value
    if (this.sandbox.value) chosen.sandbox = this.sandbox.value
    return chosen
  }

  /** Clear the chosen settings after a message was sent. The server uses the settings of a message for all later turns. */
  sent() {
    this.model.value = this.policy.value = this.sandbox.value = ""
    this.mark()
  }

  /** @private */
  mark() {
    const dot = this.summary.querySelector(".settings-dot")
    if (dot instanceof HTMLElement) dot.hidden = Object.keys(this.overrides()).length === 0
  }

  /** Load the current settings of the conversation, and the settings that the user may choose. @private */
  async load() {
    if (!this.node.open) return
    const settings = await this.connection.call("settingsList", { conversation_id: this.conversationId }).catch(() => null)
    if (!settings) return
    this.model.placeholder = settings.model
    fillModels(settings.models)
    const chosen = [this.policy.value, this.sandbox.value]
    fillChoices(this.policy, settings.approval_policies, POLICY_NAMES, `${POLICY_NAMES[settings.approval_policy]} (unchanged)`)
    fillChoices(this.sandbox, settings.sandbox_modes, SANDBOX_NAMES, `${SANDBOX_NAMES[settings.sandbox]} (unchanged)`)
    this.policy.value = chosen[0]
    this.sandbox.value = chosen[1]
  }
}

/**
 * @param {string} label
 * @param {HTMLElement} input
 */
export function field(label, input) {
  return h("label", { class: "field" }, h("span", null, label), input)
}

/** @param {HTMLSelectElement} select @param {string[]} values @param {Record<string, string>} names @param {string} first */
export function fillChoices(select, values, names, first) {
  select.replaceChildren(h("option", { value: "" }, first), ...values.map((value) => h("option", { value }, names[value] ?? value)))
}

/** Set the names that the input fields for a model suggest. @param {string[]} models */
export function fillModels(models) {
  document.getElementById("models")?.replaceChildren(...models.map((model) => h("option", { value: model })))
}
