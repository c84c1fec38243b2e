// Loaded before kinesis-mock (node --require), for what it has no option for:
// - every server of the process listens on 127.0.0.1 only; the port of the plain HTTP server is
//   written to the file $LISTENING_FILE;
// - a line "advance <ms>" on standard input moves the time of day, not the timers; the sum of all
//   moves is then written to $LISTENING_FILE.clock;
// - the process ends when its standard input does, so with its parent (by a signal: on exit() it
//   would wait half a minute for its connections).
"use strict";

const fs = require("node:fs");
const net = require("node:net");
const readline = require("node:readline");

// The port that the plain server is told, by which it is known; every server gets a free one.
const PLAIN = 1;

function publish(file, value) {
  fs.writeFileSync(`${file}.new`, String(value));
  fs.renameSync(`${file}.new`, file);
}

const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...args) {
  const callback = args.find((arg) => typeof arg === "function");
  const options = typeof args[0] === "object" && args[0] !== null ? args[0] : { port: args[0] };
  this.once("listening", () => {
    if (Number(options.port) === PLAIN) publish(process.env.LISTENING_FILE, this.address().port);
  });
  return listen.call(this, { ...options, port: 0, host: "127.0.0.1" }, callback);
};

let offset = 0;
const now = Date.now;
Date.now = () => now() + offset;
const origin = performance.timeOrigin;
Object.defineProperty(performance, "timeOrigin", { get: () => origin + offset });

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => {
  offset += Number(line.split(" ")[1]);
  publish(`${process.env.LISTENING_FILE}.clock`, offset);
});
lines.on("close", () => process.kill(process.pid, "SIGKILL"));
