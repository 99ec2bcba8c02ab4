// Tools of agent frameworks, against the published interfaces of the Claude Agent SDK for TypeScript (tool,
// createSdkMcpServer, HookCallback) and of the MCP SDK for TypeScript 1.x (registerTool), and a real Postgres.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { addToMcpServer, FAULT, FROM_TOOL_USE_ID, outboxHook, outboxServer, outboxTool, overPg } from "@agent-drainer/client/agents";

const require = createRequire(import.meta.url);
const { sentences } = JSON.parse(readFileSync(process.env.DRAINER_VECTORS, "utf8"));
let pg;
try {
  pg = require("pg");
} catch {
  console.log("no node-postgres here; install Debian's node-pg, or say NODE_PATH");
}
const options = { skip: pg ? false : "no node-postgres here", timeout: 120_000 };

const sdk = {
  tool: (name, description, inputSchema, handler) => ({ name, description, inputSchema, handler }),
  createSdkMcpServer: ({ name, version, tools }) => ({ type: "sdk", name, instance: { version, tools } }),
};
const charge = (tool = "parked/charge", changed = {}) => outboxTool(tool, {
  name: "charge", description: "Charge an invoice.", schema: { invoice: "z.string()", amount: "z.number()" }, step: "charge",
  scope: ({ invoice }) => invoice,
  act: async (client, { amount, run }) => {
    await client.query("INSERT INTO agent_state (run) VALUES ($1)", [run]);
    return { amount };
  },
  ...changed,
});

/** A run with a pool, which asks for the tool as each framework does. */
async function running(use) {
  const pool = new pg.Pool({ connectionString: process.env.DRAINER_TEST_AGENT });
  const admin = new pg.Client({ connectionString: process.env.DRAINER_TEST_ADMIN });
  await admin.connect();
  const run = randomUUID();
  const errors = [];
  const ways = { ...overPg(pool, run), onError: (tool, error) => errors.push(error) };
  const given = (changed) => ({ invoice: "invoice_442", amount: 1200, run, ...changed });
  try {
    await use({
      errors,
      ask: (tool, changed) => outboxServer(sdk, "billing", [tool], ways).instance.tools[0].handler(given(changed), {}),
      askOverMcp: (tool, changed) => {
        const added = {};
        addToMcpServer({ registerTool: (name, config, handler) => { added[name] = { config, handler }; } }, [tool], ways);
        assert.deepEqual(added.charge.config, { description: "Charge an invoice.", inputSchema: tool.schema });
        return added.charge.handler(given(changed), {});
      },
      hook: (tool, name, id) => outboxHook({ mcp__billing__charge: tool }, ways)({ hook_event_name: "PreToolUse", tool_name: name, tool_input: given() }, id, {}),
      counts: async () => Object.values((await admin.query(
        "SELECT (SELECT count(*) FROM outbox.intent WHERE agent_run_id = $1)::int, (SELECT count(*) FROM agent_state WHERE run = $1)::int AS states", [run])).rows[0]),
    });
  } finally {
    await pool.end();
    await admin.end();
  }
}
const said = (text, isError = false) => ({ content: [{ type: "text", text }], isError });

test("a loop that asks three times records once", options, () => running(async ({ ask, askOverMcp, counts }) => {
  for (const asked of [ask, ask, askOverMcp]) assert.deepEqual(await asked(charge()), said(sentences.recorded));
  assert.equal((await counts())[0], 1);
}));

test("another amount is refused and the state rolled back", options, () => running(async ({ ask, askOverMcp, counts }) => {
  await ask(charge());
  for (const asked of [ask, askOverMcp]) assert.deepEqual(await asked(charge(), { amount: 9 }), said(sentences.key_taken, true));
  assert.deepEqual(await counts(), [1, 1]);
}));

test("the result is waited for, and a wait that is over is no failure", options, () => running(async ({ ask }) => {
  assert.match((await ask(charge("ok/act", { wait: 60_000 }))).content[0].text, /^It is done\. Reference: ref-/);
  assert.deepEqual(await ask(charge("parked/charge", { wait: 50 })), said(sentences.pending));
  assert.deepEqual(await ask(charge("refuse/act", { wait: 60_000 })), said(sentences.failed, true));
}));

test("a function that fails records nothing and shows the model nothing", options, () => running(async ({ ask, counts, errors }) => {
  const act = async (client, { run }) => {
    await client.query("INSERT INTO agent_state (run) VALUES ($1)", [run]);
    throw new Error("canary");
  };
  assert.deepEqual(await ask(charge("parked/charge", { act })), said(FAULT, true));
  assert.deepEqual([await counts(), errors.map(({ message }) => message)], [[0, 0], ["canary"]]);
}));

test("a hook denies the call that it records", options, () => running(async ({ hook, counts }) => {
  assert.deepEqual(await hook(charge(), "mcp__billing__charge"), {
    hookSpecificOutput: { hookEventName: "PreToolUse", permissionDecision: "deny", permissionDecisionReason: sentences.recorded } });
  for (const other of ["Bash", "constructor", undefined]) assert.deepEqual(await hook(charge(), other), {});
  assert.deepEqual(await counts(), [1, 1]);
}));

test("a tool use id is a step only where it is told", options, () => running(async ({ ask, hook, counts, errors }) => {
  const tool = charge("parked/charge", { step: FROM_TOOL_USE_ID });
  for (const id of ["toolu_1", "toolu_1", "toolu_2", undefined]) await hook(tool, "mcp__billing__charge", id);
  assert.throws(() => ask(tool), /outboxHook/);
  assert.deepEqual([(await counts())[0], errors.length], [2, 1]);
}));

test("a tool needs a description", () => assert.throws(() => charge("p/o", { description: " " }), /description/));
