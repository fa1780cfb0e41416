// Runs one turn, prints its text while the model writes it, and asks on the terminal before the agent leaves the sandbox.
// In a project with "type": "module", run `npm install @modelcontextprotocol/sdk tsx` and then `npx tsx approve.ts "PROMPT"`.

import { createInterface } from "node:readline/promises";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { ElicitRequestSchema, LoggingMessageNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

type Event = { type: string; delta?: string; message?: string; reason?: string };

const terminal = createInterface({ input: process.stdin, output: process.stdout });
const client = new Client({ name: "approve", version: "1.0.0" }, { capabilities: { elicitation: {} } });

client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
  const answer = await terminal.question(`\n${params.message}\n[y/n] `);
  return { action: "accept", content: { decision: answer === "y" ? "approved" : "denied" } };
});

const done = new Promise<void>((resolve) => {
  client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => {
    if (params.logger !== "parley.conversation") return;
    const event = (params.data as { params: { msg?: Event } }).params.msg;
    if (event?.type === "agent_message_delta") process.stdout.write(event.delta ?? "");
    if (event?.type === "agent_message") console.log();
    if (event?.type === "error") console.error(event.message);
    if (event?.type === "task_complete" || (event?.type === "error" && event.reason)) resolve();
  });
});

const env = process.env as Record<string, string>;
await client.connect(new StdioClientTransport({ command: "parley", args: ["mcp"], env }));
const created = await client.callTool({ name: "conversationCreate", arguments: { cwd: ".", sandbox: "workspace-write" } });
const { conversation_id } = created.structuredContent as { conversation_id: string };
await client.callTool({ name: "conversationStream", arguments: { conversation_id, as: "log" } });
const content = [{ type: "text", text: process.argv.slice(2).join(" ") || "What does this repository do?" }];
await client.callTool({ name: "conversationSendMessage", arguments: { conversation_id, content } });
await done;
terminal.close();
await client.close();
