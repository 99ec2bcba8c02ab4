// A stand-in for the package pg, as far as docs/producers.md uses it: it speaks
// PostgreSQL's own protocol, to a server that asks for no password.
import net from "node:net";

const text = (...fields) => Buffer.concat(fields.map((field) => Buffer.from(`${field}\0`)));
const int = (size, value) => {
  const octets = Buffer.alloc(size);
  octets.writeIntBE(value, 0, size);
  return octets;
};
const message = (type, ...parts) => {
  const body = Buffer.concat(parts);
  return Buffer.concat([Buffer.from(type), int(4, body.length + 4), body]);
};

// bool, the smaller integers and jsonb arrive as values, int8 and the rest as text: so does pg.
const decode = { 16: (value) => value === "t", 21: Number, 23: Number, 3802: JSON.parse };

class Client {
  constructor({ connectionString }) {
    this.url = new URL(connectionString);
  }

  async connect() {
    this.socket = net.connect(Number(this.url.port || 5432), this.url.hostname);
    this.input = this.socket[Symbol.asyncIterator]();
    this.rest = Buffer.alloc(0);
    const start = Buffer.concat([int(4, 196608), text("user", decodeURIComponent(this.url.username), "database", this.url.pathname.slice(1), "")]);
    this.socket.write(Buffer.concat([int(4, start.length + 4), start]));
    await this.answer();
  }

  async query(sql, values = []) {
    const bound = values.flatMap((value) => {
      const octets = Buffer.from(String(value));
      return [int(4, octets.length), octets];
    });
    this.socket.write(
      Buffer.concat([
        message("P", text("", sql), int(2, 0)),
        message("B", text("", ""), int(2, 0), int(2, values.length), ...bound, int(2, 0)),
        message("D", Buffer.from("P"), text("")),
        message("E", text(""), int(4, 0)),
        message("S"),
      ]),
    );
    return this.answer();
  }

  // answer reads up to ReadyForQuery.
  async answer() {
    let columns = [];
    let failure = null;
    const rows = [];
    for (;;) {
      const [type, body] = await this.read();
      if (type === "T") columns = describe(body);
      if (type === "D") rows.push(row(columns, body));
      if (type === "E") failure = refusal(body);
      if (type === "R" && body.readInt32BE(0) !== 0) throw new Error("the server asks for a password");
      if (type !== "Z") continue;
      if (failure) throw failure;
      return { rows };
    }
  }

  async read() {
    while (this.rest.length < 5 || this.rest.length < 1 + this.rest.readInt32BE(1)) {
      const { value, done } = await this.input.next();
      if (done) throw new Error("the server hung up");
      this.rest = Buffer.concat([this.rest, value]);
    }
    const end = 1 + this.rest.readInt32BE(1);
    const [type, body] = [String.fromCharCode(this.rest[0]), this.rest.subarray(5, end)];
    this.rest = this.rest.subarray(end);
    return [type, body];
  }

  async end() {
    this.socket.end(message("X"));
  }
}

function describe(body) {
  const columns = [];
  for (let at = 2; columns.length < body.readInt16BE(0); at += 18) {
    const end = body.indexOf(0, at);
    columns.push({ name: body.toString("utf8", at, end), type: body.readInt32BE(end + 7) });
    at = end + 1;
  }
  return columns;
}

function row(columns, body) {
  const found = {};
  let at = 2;
  for (const { name, type } of columns) {
    const size = body.readInt32BE(at);
    at += 4;
    if (size < 0) {
      found[name] = null;
      continue;
    }
    const value = body.toString("utf8", at, at + size);
    found[name] = decode[type] ? decode[type](value) : value;
    at += size;
  }
  return found;
}

function refusal(body) {
  const fields = Object.fromEntries(body.toString().split("\0").filter(Boolean).map((field) => [field[0], field.slice(1)]));
  return Object.assign(new Error(fields.M), { code: fields.C });
}

export default { Client };
