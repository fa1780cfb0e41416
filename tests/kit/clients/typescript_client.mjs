// The official TypeScript client: calls with progress, a call that is cancelled, a send that is cancelled late.
// Prints what it was told as JSON: results, and every error that the client reports.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { CallToolResultSchema } from "@modelcontextprotocol/sdk/types.js";

const [command, ...args] = process.argv.slice(2);
const client = new Client({ name: "typescript", version: "1.0.0" });
const told = { results: [], aborted: "", state: "", errors: [] };
client.onerror = (error) => told.errors.push(String(error.message));
await client.connect(new StdioClientTransport({ command, args, env: process.env }));

const call = (name, given, options) =>
  client.callTool({ name, arguments: given }, CallToolResultSchema, { onprogress: () => {}, ...options });

for (let number = 0; number < 5; number++) {
  const { structuredContent } = await call("codex", { prompt: "go" });
  told.results.push(structuredContent.message);
}

const giving_up = new AbortController();
try {
  await call("codex", { prompt: "wait" }, { signal: giving_up.signal, onprogress: () => giving_up.abort("enough") });
} catch (error) {
  told.aborted = String(error.message ?? error);
}

const created = (await call("conversationCreate", { prompt: "", model: "m", cwd: "." })).structuredContent;
const conversation = { conversation_id: created.conversation_id };
const late = new AbortController();
await call("conversationSendMessage", { ...conversation, content: [{ type: "text", text: "go" }] }, { signal: late.signal });
late.abort("done");
do {
  told.state = (await call("conversationStatus", conversation)).structuredContent.state;
} while (told.state === "running");
const { events } = (await call("conversationRead", conversation)).structuredContent;
told.last = events.at(-1).msg;
await client.ping(); // all that was on its way is here

console.log(JSON.stringify(told));
await client.close();
