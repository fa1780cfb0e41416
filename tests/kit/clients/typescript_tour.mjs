// An official TypeScript client: connects, lists, calls, approves, streams, and resumes after cut connections.
// Arguments: the generation of the package (1, 2, or `modern` for 2 with its newest protocol), then `http URL TOKEN`
// or `stdio COMMAND ...`.
// Prints what it saw as JSON.

const [generation, kind, ...rest] = process.argv.slice(2);
const isModern = generation === "modern";
const load = async (old, recent) => import(generation === "1" ? `@modelcontextprotocol/sdk/${old}` : recent);
const { Client } = await load("client/index.js", "@modelcontextprotocol/client");
const seen = { tools: [], asked: [], positions: [], opened: 0, errors: [] };

// Cuts the first streams of events after some bytes, as a bad network does.
const cuts = [2_000, 6_000, 1, 9_000, 4_000];
const cutting = async (url, init) => {
  const response = await fetch(url, init);
  const isStream = isModern ? String(init?.body).includes("conversationStream") : (init?.method ?? "GET") === "GET";
  if (!isStream || response.status !== 200) return response;
  seen.opened++;
  const most = cuts.shift();
  if (most === undefined) return response;
  let size = 0;
  const cut = new TransformStream({
    transform(chunk, stream) {
      size += chunk.length;
      if (size < most) stream.enqueue(chunk);
      else stream.error(new Error("cut"));
    },
  });
  return new Response(response.body.pipeThrough(cut), { status: 200, headers: response.headers });
};

const transport = async () => {
  if (kind === "stdio") {
    const { StdioClientTransport } = await load("client/stdio.js", "@modelcontextprotocol/client/stdio");
    return new StdioClientTransport({ command: rest[0], args: rest.slice(1), env: process.env });
  }
  const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js", "@modelcontextprotocol/client");
  const delays = { initialReconnectionDelay: 10, maxReconnectionDelay: 50, reconnectionDelayGrowFactor: 1.5 };
  return new StreamableHTTPClientTransport(new URL(rest[0]), {
    fetch: cutting,
    requestInit: { headers: { Authorization: `Bearer ${rest[1]}` } },
    reconnectionOptions: { ...delays, maxRetries: 20 },
  });
};

const options = { capabilities: { elicitation: {} }, ...(isModern && { versionNegotiation: { mode: "auto" } }) };
const client = new Client({ name: "typescript", version: "1.0.0" }, options);
const answer = async (request) => {
  seen.asked.push(request.params.message);
  return { action: "accept", content: { decision: "approved" } };
};
if (generation === "1") {
  const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
  client.setRequestHandler(ElicitRequestSchema, answer);
} else {
  client.setRequestHandler("elicitation/create", answer);
}
let stream = new AbortController();
client.onerror = (error) => {
  seen.errors.push(String(error.message));
  if (isModern && String(error.message).includes("disconnected")) stream.abort(); // its call would wait on
};
// Messages of an abandoned stream may still arrive over stdio, until the snapshot of the next stream.
let isAbandoned = false;
client.fallbackNotificationHandler = async ({ params }) => {
  if (params.initial_state) isAbandoned = false;
  if (isAbandoned) return;
  // A stream that is cut before its first id makes the client forget the last one: it begins again.
  if (params.initial_state && !isModern && kind === "http") seen.positions = [];
  const events = params.initial_state?.events ?? [params];
  seen.positions.push(...events.map((event) => event._meta?.seq).filter((seq) => seq !== undefined));
};
await client.connect(await transport());
seen.tools = (await client.listTools()).tools.map((tool) => tool.name);

const call = async (name, given) => (await client.callTool({ name, arguments: given })).structuredContent;
const sandbox = { "approval-policy": "untrusted", sandbox: "workspace-write" };
seen.message = (await call("codex", { prompt: "touch made", ...sandbox })).message;
seen.positions = [];

const { conversation_id } = await call("conversationCreate", { prompt: "", model: "m", cwd: "/tmp" });
// At 2026-07-28 a stream is a call that stays in flight. When it is cut, another one continues after the last position.
const follow = async () => {
  while (!seen.ended) {
    stream = new AbortController();
    const { signal } = stream;
    isAbandoned = kind === "stdio";
    try {
      const given = { conversation_id, after: seen.positions.at(-1) ?? 0 };
      const result = await client.callTool({ name: "conversationStream", arguments: given }, { signal });
      seen.ended = result.structuredContent;
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }
};
const following = isModern ? follow() : await call("conversationStream", { conversation_id });
for (let number = 0; number < 6; number++) {
  await call("conversationSendMessage", { conversation_id, content: [{ type: "text", text: "say" }] });
  // Over stdio no connection is cut: the client gives its stream up in the middle of a turn, and opens another one.
  if (kind === "stdio" && number % 2 === 1) {
    seen.opened++;
    isAbandoned = true;
    if (isModern) stream.abort();
    else await call("conversationStream", { conversation_id, after: seen.positions.at(-1) });
  }
  for (let page = { seq: 0, state: "running" }; page.state !== "idle"; ) {
    page = await call("conversationRead", { conversation_id, after: page.seq, wait_seconds: 20 });
  }
}
const { events } = await call("conversationRead", { conversation_id, limit: 1000 });
seen.expected = events.map((event) => event.seq);
const late = Date.now() + 30_000;
while (seen.positions.length < seen.expected.length && Date.now() < late) {
  await new Promise((wake) => setTimeout(wake, 10));
}
if (isModern) {
  await call("conversationDelete", { conversation_id });
  await following;
}
seen.version = client.getNegotiatedProtocolVersion?.();

console.log(JSON.stringify(seen));
await client.close();
