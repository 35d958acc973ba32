// An HTTP origin with Node's http: `origin.js HOST PORT`, with `h2` behind it: HTTP/2 by prior knowledge. clients.rs lists its paths and answers.
const crypto = require('crypto');
const http = require('http');
const http2 = require('http2');

function report(request, response) {
  const pieces = [];
  request.on('data', (piece) => pieces.push(piece));
  request.on('end', () => {
    const said = JSON.stringify([request.method, request.url, Buffer.concat(pieces).toString('latin1')]);
    console.log(said);
    response.writeHead(200, { 'X-Origin': 'yes', 'Content-Length': Buffer.byteLength(said) });
    response.end(said);
  });
}

function digest(request, response) {
  const hash = crypto.createHash('sha256');
  request.on('data', (piece) => hash.update(piece));
  request.on('end', () => {
    response.setHeader('X-Sum-Was', request.trailers['x-sum'] || '');
    response.end(hash.digest('hex'));
  });
}

function answer(request, response) {
  const path = request.url.slice(1);
  if (path === '204' || path === '304') {
    response.writeHead(Number(path)).end();
  } else if (/^[0-9]+$/.test(path)) {
    response.setHeader('Content-Length', path);
    response.end(request.method === 'HEAD' ? '' : 'x'.repeat(Number(path)));
  } else if (path === 'chunked') {
    response.writeHead(200, { Trailer: 'X-Sum' });
    for (const piece of ['one', 'two', 'three']) response.write(piece);
    response.addTrailers({ 'X-Sum': '11' });
    response.end();
  } else if (path === 'digest') {
    digest(request, response);
  } else {
    report(request, response);
  }
}

const server = process.argv[4] === 'h2' ? http2.createServer(answer) : http.createServer(answer);
server.on('checkContinue', (request, response) => {
  if (request.url === '/refuse') {
    response.writeHead(422).end();
  } else {
    response.writeContinue();
    answer(request, response);
  }
});
server.on('upgrade', (request, socket, head) => {
  socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n');
  socket.write(head);
  socket.pipe(socket);
  socket.on('error', () => socket.destroy());
});
server.on('clientError', (error, socket) => {
  console.log('broken', error.code);
  socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n');
});
server.listen(Number(process.argv[3]), process.argv[2]);
