// Prints the text of a turn while the model writes it, with the official TypeScript SDK of MCP.
// In a project with "type": "module", run `npm install @modelcontextprotocol/sdk tsx` and then `npx tsx live_text.ts`.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { LoggingMessageNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

type Logged = { method: string; params: { msg?: { type: string; delta?: string; message?: string; reason?: string } } };

const client = new Client({ name: "live-text", version: "1.0.0" });
const done = new Promise<void>((resolve) => {
  client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => {
    if (params.logger !== "parley.conversation") return;
    const event = (params.data as Logged).params.msg;
    if (event?.type === "agent_message_delta") process.stdout.write(event.delta ?? "");
    if (event?.type === "agent_message") console.log();
    if (event?.type === "error") console.error(event.message);
    if (event?.type === "task_complete" || (event?.type === "error" && event.reason)) resolve();
  });
});

const env = process.env as Record<string, string>;
await client.connect(new StdioClientTransport({ command: "parley", args: ["mcp"], env }));
const created = await client.callTool({ name: "conversationCreate", arguments: { cwd: "." } });
const { conversation_id } = created.structuredContent as { conversation_id: string };
await client.callTool({ name: "conversationStream", arguments: { conversation_id, as: "log" } });
const text = process.argv.slice(2).join(" ") || "What does this repository do?";
const content = [{ type: "text", text }];
await client.callTool({ name: "conversationSendMessage", arguments: { conversation_id, content } });
await done;
await client.close();
