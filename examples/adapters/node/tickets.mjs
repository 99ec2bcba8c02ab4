#!/usr/bin/env node
// @ts-check
// A help desk behind drainer's adapter protocol, version 1.
//
//   tickets.mjs [--file F]                 a child of drainer: lines on stdin and stdout
//   tickets.mjs [--file F] --unix S.sock   a sidecar on a Unix socket
//
// Copy it and put your upstream in the place of Desk. With TICKETS_TOKEN set,
// the sidecar wants it as its bearer token.

import { createHash, timingSafeEqual } from "node:crypto";
import * as fs from "node:fs";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

/**
 * @typedef {{id: string, operation: string, idempotency_key: string, payload: any}} Request
 * @typedef {{outcome: string, error_class?: string, provider_ref?: string, response?: any, replayed?: boolean}} Result
 * @typedef {{number: number, key: string, title: string, status: string}} Ticket
 */

const hello = {
  protocol: [1],
  name: "tickets",
  // What repeating a call does, at best. drainer refuses a configuration that promises more.
  operations: {
    open_ticket: "key_idempotent",
    close_ticket: "naturally_idempotent",
    find_ticket: "read_only",
  },
};

/** The upstream. It remembers every ticket by the idempotency key that opened it. */
class Desk {
  /** @type {Map<string, Ticket>} */ byKey = new Map();
  /** @type {Map<number, Ticket>} */ byNumber = new Map();
  /** @type {number | undefined} */ file;

  /** @param {string} [path] */
  constructor(path) {
    if (!path) return;
    this.file = fs.openSync(path, "a+");
    for (const line of fs.readFileSync(path, "utf8").split("\n")) {
      try {
        this.remember(JSON.parse(line));
      } catch {
        // A crash cut this record short. Its request got no answer.
      }
    }
  }

  /** @param {Ticket} ticket */
  remember(ticket) {
    this.byKey.set(ticket.key, ticket);
    this.byNumber.set(ticket.number, ticket);
  }

  /**
   * Write first, answer afterwards: what was answered is never forgotten.
   * @param {Ticket} ticket
   */
  keep(ticket) {
    if (this.file !== undefined) {
      fs.writeSync(this.file, "\n" + JSON.stringify(ticket)); // a torn record spoils no other
      fs.fsyncSync(this.file);
    }
    this.remember(ticket);
  }

  /** @type {(key: string, payload: any) => Result} */
  open_ticket(key, payload) {
    const title = payload?.title;
    if (typeof title !== "string" || title === "") return { outcome: "rejected", error_class: "title_missing" };
    const known = this.byKey.get(key);
    if (!known) {
      const ticket = { number: this.byKey.size + 1, key, title, status: "open" };
      this.keep(ticket);
      return completed(ticket);
    }
    if (known.title !== title) return { outcome: "rejected", error_class: "key_reused" };
    return { ...completed(known), replayed: true };
  }

  /** @type {(key: string, payload: any) => Result} */
  close_ticket(_key, payload) {
    const ticket = this.byNumber.get(payload?.number);
    if (!ticket) return { outcome: "rejected", error_class: "no_such_ticket" };
    const closed = { ...ticket, status: "closed" };
    this.keep(closed);
    return completed(closed);
  }

  /**
   * A lookup: it is asked with the key of the call in doubt.
   * @type {(key: string, payload: any) => Result}
   */
  find_ticket(key) {
    const ticket = this.byKey.get(key);
    return ticket ? completed(ticket) : { outcome: "absent" };
  }
}

/** @param {Ticket} ticket */
function completed({ number, title, status }) {
  return { outcome: "completed", provider_ref: String(number), response: { number, title, status } };
}

/**
 * Every request gets one result. After an exception the outcome stays in doubt.
 * @param {Desk} desk
 * @param {Request} request
 */
async function answer(desk, { id, operation, idempotency_key, payload }) {
  try {
    if (!Object.hasOwn(hello.operations, operation)) return { id, outcome: "rejected", error_class: "unknown_operation" };
    return { id, ...(await desk[operation](idempotency_key, payload)) };
  } catch (problem) {
    console.error(problem);
    return { id, outcome: "ambiguous", error_class: "exception" };
  }
}

/** @param {Desk} desk */
async function serveLines(desk) {
  console.log = console.error; // a stray log is no message
  /** @param {object} message */
  const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
  let greeted = false;
  for await (const line of createInterface({ input: process.stdin })) {
    if (greeted) answer(desk, JSON.parse(line)).then(say);
    else say(hello); // the first line is drainer's hello
    greeted = true;
  }
}

/**
 * @param {Desk} desk
 * @param {string} path
 */
function serveHTTP(desk, path) {
  const token = process.env.TICKETS_TOKEN;
  const digest = (/** @type {string} */ text) => createHash("sha256").update(text).digest();
  const server = createServer(async (request, response) => {
    const reply = (/** @type {number} */ status, /** @type {object} */ message) =>
      response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(message));
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const call = `${request.method} ${request.url}`;
    if (token && !timingSafeEqual(digest(request.headers.authorization ?? ""), digest(`Bearer ${token}`))) reply(401, {});
    else if (call === "GET /v1/hello") reply(200, hello);
    else if (call === "POST /v1/dispatch") reply(200, await answer(desk, JSON.parse(Buffer.concat(chunks).toString())));
    else reply(404, {});
  });
  server.keepAliveTimeout = 75_000; // longer than drainer keeps a connection idle
  fs.rmSync(path, { force: true }); // left by the last run
  process.umask(0o177); // for its owner alone
  server.listen(path);
}

const { values } = parseArgs({ options: { file: { type: "string" }, unix: { type: "string" } } });
const desk = new Desk(values.file);
if (values.unix) serveHTTP(desk, values.unix);
else await serveLines(desk);
