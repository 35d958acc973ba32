// A server on findhit-proxywrap, which names its clients in a file: node proxywrap.js PORT LOG
const [port, log] = process.argv.slice(2);
const fs = require("fs");
const net = require("findhit-proxywrap").proxy(require("net"), { ignoreStrictExceptions: true });
net.createServer((socket) => {
  fs.appendFileSync(log, `${socket.remoteAddress}\n`);
  socket.on("error", () => {});
  socket.pipe(socket);
}).listen(Number(port), "127.0.0.1");
